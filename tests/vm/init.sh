#!/bin/sh
# The first process of a guest. Brings up the network of QEMU's user mode, then runs the commands that come over a
# virtio-serial port, each as a line "ID SECONDS SCRIPT" with the script in base64, beside each other. An answer is a
# line "ID STATUS BYTES" and the output. When the tests' end of the port goes away the guest powers off.
export PATH=/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
depmod
modprobe -a virtio_pci virtio_console virtio_net virtio_rng configfs 2>/dev/null
mount -t configfs cfg /sys/kernel/config

off() { echo "$1"; sync; poweroff -f; }

port= tries=0
while [ -z "$port" ]; do
    for place in /sys/class/virtio-ports/*; do
        [ "$(cat "$place/name" 2>/dev/null)" = forebay ] && port=/dev/${place##*/}
    done
    [ -n "$port" ] || { tries=$((tries + 1)); [ $tries -lt 100 ] || off 'no virtio-serial port'; sleep 0.1; }
done

ip link set lo up
for place in /sys/class/net/*; do
    name=${place##*/}
    [ "$name" = lo ] && continue
    ip link set "$name" up && ip addr add 10.0.2.15/24 dev "$name" && ip route add default via 10.0.2.2
done

answer() { # id seconds script
    echo "$3" | base64 -d >"/run/$1.sh"
    timeout -k 5 "$2" sh "/run/$1.sh" >"/run/$1.out" 2>&1 </dev/null 3>&-
    status=$?
    {
        flock 9
        printf '%s %s %s\n' "$1" $status "$(stat -c %s "/run/$1.out")" >&3
        cat "/run/$1.out" >&3
    } 9>/run/answers
    rm -f "/run/$1.sh" "/run/$1.out"
}

exec 3<>"$port"
echo "0 0 $(uname -r | wc -c)" >&3
uname -r >&3
while read -r id seconds script <&3; do
    answer "$id" "$seconds" "$script" &
done
off 'the tests are gone'
