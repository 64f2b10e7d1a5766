"""The shop that `redrive demo` makes: `shop.py` is copied as it is, `story.py` lets it meet what shops meet."""
