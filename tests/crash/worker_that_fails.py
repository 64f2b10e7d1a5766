"""A program that cannot be imported: a library is missing where it runs."""

import a_library_that_nobody_has  # noqa: F401
