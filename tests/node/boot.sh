#!/bin/bash
# The first process of a machine: boot.sh FOLDER NAME. It is in new namespaces already; here it gets files and /proc of its
# own, says so in FOLDER/booted, and then does what a first process does: it waits for processes without a parent.
set -eu
FOLDER=$1 NAME=$2
hostname "$NAME"
mount --make-rprivate /
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
if [ -e "$FOLDER/cgroup-v2" ]; then
  umount /sys/fs/cgroup
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  echo 1 >/sys/fs/cgroup/init/cgroup.procs  # only leaves may have processes; machine.py moves unshare there as well
  enabled=$(sed 's/[^ ]*/+&/g' /sys/fs/cgroup/cgroup.controllers)
  until echo "$enabled" 2>/dev/null >/sys/fs/cgroup/cgroup.subtree_control; do sleep 0.05; done
else
  while read -r controller; do
    mkdir "/sys/fs/cgroup/$controller"
    option=$controller; [ "$controller" != systemd ] || option=none,name=systemd
    mount -t cgroup -o "$option" cgroup "/sys/fs/cgroup/$controller"
  done <"$FOLDER/controllers"
fi
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=1777 shm /dev/shm
# What stays over a reboot: a folder of the machine's own at each of these places.
for place in /var/lib/kubelet /var/lib/containerd /var/lib/cni /var/lib/etcd /var/log /etc/cdi /tmp; do
  mkdir -p "$place" "$FOLDER/disk$place"
  mount --bind "$FOLDER/disk$place" "$place"
done
chmod 1777 /tmp
mount --bind "$FOLDER/boot_id" /proc/sys/kernel/random/boot_id
cp "$FOLDER/boot_id" /run/boot_id  # containers have a /proc of their own, with the boot id of the host
mkdir -p /run/cdi /run/netns
mount --make-rshared /
ip link set lo up
touch "$FOLDER/booted"
trap : TERM INT HUP
while :; do
  sleep 3600 &
  wait $! || :
done
