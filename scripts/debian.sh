# Sourced by scripts/image and tests/deploy/package_test: a bare Debian 12 in a directory, and commands in it. `root` is the
# repository, `system` the directory of the system; build/debian-12 keeps the bare one for the next run. Needs root.
base="$root/build/debian-12"

# inside COMMAND...: runs it in the system, with a /proc and mounts that end with the command.
inside() {
  unshare --mount --pid --fork --kill-child bash -euc '
    system=$1; shift
    mount --bind "$system" "$system"
    mount -t proc proc "$system/proc"
    mount -t sysfs -o ro sysfs "$system/sys"
    mount --rbind /dev "$system/dev"
    [[ -z ${READ_ONLY:-} ]] || { mount -t tmpfs tmpfs "$system/tmp"; mount -o remount,bind,ro "$system"; }
    exec chroot "$system" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
      DEBIAN_FRONTEND=noninteractive "$@"' inside "$system" "$@"
}
# as USER:GROUP COMMAND...: the same without privileges, in /tmp.
as() {
  local user=${1%:*} group=${1#*:}
  shift
  inside setpriv --reuid "$user" --regid "$group" --clear-groups env -C /tmp "$@"
}

make_base() {
  [[ ! -e $base/.complete ]] || return 0
  rm -rf "$base"
  debootstrap --variant=minbase bookworm "$base" http://deb.debian.org/debian
  echo 'deb http://deb.debian.org/debian-security bookworm-security main' >>"$base/etc/apt/sources.list"
  touch "$base/.complete"
}
