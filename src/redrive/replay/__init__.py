"""What operators do: look at letters, repair, replay, reset, and check the books. Works while no worker runs."""
