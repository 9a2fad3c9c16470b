# Removes from a Debian base what only a build or a person at a prompt needs: pip and its relatives, compilers' headers,
# documentation, package indexes. The list of installed packages stays: vulnerability scanners read it.
set -eu
for site in /usr/lib/python3/dist-packages /usr/lib/python3.*  /usr/local/lib/python3.* /usr/local/lib/python3.*/site-packages; do
  [ -d "$site" ] || continue
  rm -rf "$site"/pip "$site"/pip-* "$site"/setuptools "$site"/setuptools-* "$site"/pkg_resources "$site"/wheel "$site"/wheel-* \
    "$site"/_distutils_hack "$site"/distutils-precedence.pth "$site"/ensurepip "$site"/idlelib "$site"/lib2to3 "$site"/turtledemo \
    "$site"/tkinter "$site"/pydoc_data "$site"/test "$site"/config-3.*
done
rm -rf /usr/local/bin/pip* /usr/bin/pip* /usr/local/include /usr/include /usr/share/python-wheels \
  /usr/share/doc /usr/share/man /usr/share/info /usr/share/locale /usr/share/lintian \
  /var/cache/apt /var/lib/apt/lists /var/log /root/.cache /tmp/* /var/tmp/*
mkdir -p /var/log /tmp
find / -xdev -name __pycache__ -type d -prune -exec rm -rf {} +
python3 -m compileall -q "$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])')" || true
