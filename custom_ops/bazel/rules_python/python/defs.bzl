"""Stand-in: old Bazels have these rules built in."""

py_library = native.py_library
py_test = native.py_test
