# trim_base.sh DIRECTORY: remove from a Debian base what only a build or a person at a prompt needs: pip and its relatives,
# compilers' headers, documentation, package indexes, every program that programs.txt does not name. The list of installed packages stays: vulnerability scanners read it.
# What is left of Python is compiled by this machine's python3, which has the version of the base's. The bytecode does not
# depend on files' dates, so that an image is the same whenever it is built, and is used though a layer has changed them.
set -eu
kept=" $(sed "/^#/d" "$(dirname "$0")/programs.txt" | tr "\n" " ") "
cd "$1"
[ -d etc ] && [ "$(pwd)" != / ]
for site in usr/lib/python3/dist-packages usr/lib/python3.* usr/local/lib/python3.* usr/local/lib/python3.*/site-packages; do
  [ -d "$site" ] || continue
  rm -rf "$site"/pip "$site"/pip-* "$site"/setuptools "$site"/setuptools-* "$site"/pkg_resources "$site"/wheel "$site"/wheel-* \
    "$site"/_distutils_hack "$site"/distutils-precedence.pth "$site"/ensurepip "$site"/idlelib "$site"/lib2to3 "$site"/turtledemo \
    "$site"/tkinter "$site"/pydoc_data "$site"/test "$site"/config-3.*
done
rm -rf usr/local/bin/pip* usr/bin/pip* usr/local/include usr/include usr/share/python-wheels \
  usr/share/doc usr/share/man usr/share/info usr/share/locale usr/share/lintian \
  var/cache/apt var/lib/apt/lists var/log root/.cache tmp/* var/tmp/*
mkdir -p var/log tmp
for folder in usr/bin usr/sbin usr/local/bin usr/local/sbin bin sbin; do
  [ -d "$folder" ] && [ ! -L "$folder" ] || continue
  for program in "$folder"/*; do
    case "$kept" in *" ${program##*/} "*) ;; *) rm -rf "$program" ;; esac
  done
done
rm -rf usr/lib/apt usr/lib/*/perl-base usr/share/perl5 etc/apt usr/lib/dpkg usr/lib/systemd usr/lib/udev etc/cron.* etc/init.d
# No process becomes another user in the container: without setuid bits, mount and the like have only their caller's rights.
find . -xdev -type f -perm /6000 -exec chmod a-s {} +
find . -xdev -name __pycache__ -type d -prune -exec rm -rf {} +
for stdlib in usr/lib/python3.* usr/local/lib/python3.*; do
  [ ! -d "$stdlib" ] || python3 -m compileall -q -s "$(pwd)" -p / --invalidation-mode unchecked-hash "$stdlib" || true
done
