"""The TensorFlow that is installed, as a repository: its headers and libraries."""

_FIND = "import importlib.util as u; print(u.find_spec('tensorflow').submodule_search_locations[0])"

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_import(
    name = "framework",
    shared_library = "lib/libtensorflow_framework.so.2",
)

cc_library(
    name = "tensorflow",
    hdrs = glob([
        "include/tensorflow/c/**/*.h",
        "include/tensorflow/core/common_runtime/next_pluggable_device/c/*.h",
        "include/tensorflow/core/platform/**/*.h",
        "include/xla/tsl/c/**/*.h",
        "include/tsl/**/*.h",
    ], allow_empty = True),
    includes = ["include"],
    deps = [":framework"],
)
"""

def _tensorflow_impl(context):
    python = context.os.environ.get("TFRING_BAZEL_PYTHON", "python3")
    found = context.execute([python, "-c", _FIND])
    if found.return_code != 0:
        fail(
            "The headers of TensorFlow are needed to build tfring, but %s cannot find it. " % python +
            "Install tensorflow-cpu or tensorflow there, or set TFRING_BAZEL_PYTHON.",
        )
    folder = found.stdout.strip()
    context.symlink(folder + "/include", "include")
    context.symlink(
        folder + "/libtensorflow_framework.so.2",
        "lib/libtensorflow_framework.so.2",
    )
    context.file("BUILD", context.attr.loads + _BUILD)

tensorflow_repository = repository_rule(
    implementation = _tensorflow_impl,
    attrs = {"loads": attr.string(doc = "Statements that load the rules, where they are not built in.")},
    environ = ["TFRING_BAZEL_PYTHON", "PATH"],
    local = True,
)
