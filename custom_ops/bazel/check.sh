#!/bin/sh
# Builds all with Bazel and runs the engine's tests, the simulator's and the unit tests, or the
# targets that are given: custom_ops/bazel/check.sh [TARGETS]. See README.md here.
#
# Old Bazels (Debian's bazel-bootstrap, 4.2) work without a network; newer ones
# fetch rules by module.
set -e
cd "$(dirname "$0")/../.."
rules=/usr/share/bazel/rules
options="--test_output=errors --test_env=PATH --action_env=PATH --test_env=HOME"
case "$(bazel --version)" in
  *no_version | "bazel "[1-6].*) # Debian's does not know its own
    for one in java proto; do
      options="$options --override_repository=rules_$one=$rules/$one"
    done
    options="$options --ui_event_filters=-info" # its sandbox tells every step
    here=$PWD/custom_ops/bazel
    options="$options --override_repository=rules_cc=$here/rules_cc"
    options="$options --override_repository=remote_coverage_tools=$here/remote_coverage_tools"
    ;;
esac
[ $# -gt 0 ] || set -- //:engine_tests //:simulator_tests //:unit_tests
root=${TFRING_BAZEL_ROOT:-$HOME/.cache/bazel}
# shellcheck disable=SC2086
bazel --output_user_root="$root" build $options \
  //:libtfring.so //:libtfring_tensorflow.so //:tfring //:simulate
# shellcheck disable=SC2086
exec bazel --output_user_root="$root" test $options "$@"
