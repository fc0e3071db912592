#!/bin/sh
# Runs a pod of three apps from images made of this machine's programs, shows it, and removes everything again.
set -eu

work=$(mktemp -d /var/tmp/minit-demo.XXXXXX)
export MINIT_DIR="$work/data"

pod=
cleanup() {
    status=$?
    trap - EXIT INT TERM
    if [ -n "$pod" ]; then
        minit --dir "$MINIT_DIR" stop --force "$pod" >/dev/null 2>&1 || true
        minit --dir "$MINIT_DIR" status --wait "$pod" >/dev/null 2>&1 || true
        minit --dir "$MINIT_DIR" rm "$pod" >/dev/null 2>&1 || true
    fi
    # Without root, files of apps and mounts of pods are those of the user's namespace.
    [ "$(id -u)" = 0 ] ||
        minit --dir "$MINIT_DIR" unshare sh -c 'umount -l "$MINIT_RUNTIME_DIRECTORY"; rm -rf "$0"' "$work" || true
    rm -rf "$work"
    exit "$status"
}
trap cleanup EXIT INT TERM

# The port of the host for the web server: the first one from 8080 on that nobody has (proc(5), /proc/net/tcp).
port=8080
while grep -Eqs "^ *[0-9]+: [0-9A-F]+:$(printf %04X "$port") " /proc/net/tcp /proc/net/tcp6; do port=$((port + 1)); done

show() {
    printf '\n$ minit %s\n' "$*"
    minit --dir "$MINIT_DIR" "$@"
}

echo "Building three images from this machine's programs"
mkdir -p "$work/site/www"
echo "hello from a pod without systemd" >"$work/site/www/index.html"
show image build --output "$work/web.aci" --from-host /bin/busybox --rootfs "$work/site" \
    --port name=http,protocol=tcp,port=8080 --exec /bin/busybox -- httpd -f -v -p 8080 -h /www
show image build --output "$work/client.aci" --from-host /bin/busybox --exec /bin/busybox \
    -- sh -c 'until busybox wget -qO- http://127.0.0.1:8080/ 2>/dev/null; do busybox sleep 0.1; done'
show image build --output "$work/script.aci" --from-host /bin/busybox --exec /bin/busybox \
    -- sh -c 'for n in 1 2 3; do echo "step $n of $AC_APP_NAME"; done'

# Starts the pod and tells whether all its apps have been started.
start() {
    printf '\n$ minit run %s --uuid-file-save=pod.uuid web.aci client.aci script.aci &\n' "$1"
    rm -f "$work/pod.uuid"
    minit --dir "$MINIT_DIR" run "$1" --uuid-file-save="$work/pod.uuid" \
        "$work/web.aci" "$work/client.aci" "$work/script.aci" &
    run=$!
    until [ -s "$work/pod.uuid" ]; do
        kill -0 "$run" 2>/dev/null || return # the run command is gone
        sleep 0.1
    done
    pod=$(cat "$work/pod.uuid")
    minit --dir "$MINIT_DIR" status --wait-ready "$pod" >/dev/null 2>&1
}

echo
echo "Running them in one pod on the default network, in the background"
with_network=yes
if ! start "--port=http:$port"; then
    # The kernel may lack veth, or NAT by nf_tables.
    with_network=
    wait "$run" || [ -n "$pod" ]
    printf '\nThe pod did not start, as on a machine that cannot connect it to the network. Once more without.\n'
    show rm "$pod" || true
    start --net=none
fi
until minit --dir "$MINIT_DIR" app status --app=client "$pod" | grep -q '^state=exited'; do sleep 0.1; done

show list
if [ "$with_network" ]; then
    printf '\n$ busybox wget -qO- http://127.0.0.1:%s/\n' "$port"
    busybox wget -qO- "http://127.0.0.1:$port/"
fi
show status "$pod"
show enter --app=web "$pod" /bin/busybox sh -c 'echo "inside: $(busybox hostname) $(busybox ls /www)"'
show stop "$pod"
code=0
wait "$run" || code=$?
echo "minit run exited with $code"
show status "$pod"
show rm "$pod"
pod=
[ "$code" -eq 0 ]
echo
echo "Done: one pod, three apps, no systemd, nothing left behind."
