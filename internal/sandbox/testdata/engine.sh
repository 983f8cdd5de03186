#!/bin/bash
# Stands in for docker: reads the options of "run" that Patchbay writes, refuses any other,
# and makes the container with bubblewrap. The image is this machine's system.
[ "$1" = --version ] && echo "Docker version 99" && exit
shift
a=(--unshare-pid --unshare-ipc --unshare-uts --as-pid-1 --cap-drop ALL --clearenv --setenv PATH /usr/bin:/bin --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --perms 0755 --dir /run/patchbay)
[ "$(id -u)" = 0 ] || a+=(--unshare-user --uid 0 --gid 0)
entry=
while [ "$1" != the-image ]; do
  case "$1" in
  --rm | --interactive | --read-only) shift; continue ;;
  --network) [ "$2" = none ] && a+=(--unshare-net) ;;
  --cap-drop) [ "$2" = ALL ] || exit 90 ;;
  --cap-add) a+=(--cap-add "CAP_$2") ;;
  --pull) [ "$2" = never ] || exit 91 ;;
  --security-opt) [ "$2" = no-new-privileges ] || exit 92 ;;
  --user) [ "$2" = 0:0 ] || exit 93 ;;
  --hostname | --memory | --memory-swap | --pids-limit | --shm-size) ;;
  --workdir) a+=(--chdir "$2") ;;
  --tmpfs) a+=(--perms 1777 --tmpfs "${2%%:*}") ;;
  --volume) IFS=: read -r from to mode <<<"$2"; [ "$mode" = ro ] || exit 94; parent=${to%/*}; while [ -n "$parent" ]; do up+=("$parent"); parent=${parent%/*}; done
    for ((i = ${#up[@]} - 1; i >= 0; i--)); do a+=(--perms 0755 --dir "${up[i]}"); done; up=()
    a+=(--ro-bind "$from" "$to") ;;
  --env) a+=(--setenv "${2%%=*}" "${2#*=}") ;;
  --entrypoint) entry=$2 ;;
  *) echo "unknown option $1" >&2; exit 95 ;;
  esac
  shift 2
done
shift
exec bwrap "${a[@]}" -- "$entry" "$@"
