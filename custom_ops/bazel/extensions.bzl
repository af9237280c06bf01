"""The same for Bazel 7 and later, whose rules are loaded."""

load(":tensorflow.bzl", "tensorflow_repository")

def _tensorflow_impl(_):
    tensorflow_repository(
        name = "tensorflow_package",
        loads = 'load("@rules_cc//cc:defs.bzl", "cc_import", "cc_library")\n',
    )

tensorflow = module_extension(implementation = _tensorflow_impl)
