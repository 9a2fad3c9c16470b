# wheel_platforms.sh ARCHITECTURE: prints pip's options for the wheels of an image. bookworm has glibc 2.36.
set -eu
case "$1" in
  amd64) machine=x86_64 ;;
  arm64) machine=aarch64 ;;
  *) echo "no image for $1: amd64 or arm64" >&2; exit 2 ;;
esac
echo "--platform manylinux_2_28_$machine --platform manylinux_2_17_$machine --platform manylinux2014_$machine"
