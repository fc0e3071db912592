#!/bin/sh
# Builds the node and the control plane of Debian 12's Kubernetes, and unpacks Debian's etcd and kubectl beside them.
# Nothing is installed. Usage: build.sh DIRECTORY, which is made when all of it is there: bin/ with every program.
set -eu

directory=$(realpath -m "$1")
work=$directory.new
version=1.20.2
suite=bookworm
packages="etcd-server kubernetes-client"

mkdir -p "$work/bin" "$work/lists/partial" "$work/archives/partial" "$work/gocache"
cd "$work"

# Lists and archives of apt's own, so that those of the machine stay as they are.
cat >sources.list <<END
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main
deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main
END
apt() {
    apt-get -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$work/lists" \
        -o Dir::Cache="$work/archives" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root "$@"
}
apt update
if [ ! -e src ]; then
    apt source --download-only kubernetes
    rm -rf src.new
    dpkg-source --no-check -x kubernetes_*.dsc src.new >/dev/null
    mv src.new src
fi
# shellcheck disable=SC2086 # several packages
apt download $packages
for package in *.deb; do dpkg-deb -x "$package" unpacked; done
mv unpacked/usr/bin/etcd unpacked/usr/bin/kubectl bin/

go=/usr/lib/go-1.19/bin/go
export GOPATH="$work/go" GOCACHE="$work/gocache" GO111MODULE=off GOFLAGS=-p=2 CGO_ENABLED=0
mkdir -p go/src/k8s.io
ln -sfn "$work/src" go/src/k8s.io/kubernetes
cd go/src/k8s.io/kubernetes

# The versions that the programs tell each other, as hack/lib/version.sh has them.
flags="-s -w"
for package in client-go/pkg/version component-base/version; do
    for pair in gitVersion=v$version gitMajor=1 gitMinor=20 gitTreeState=archive buildDate=1970-01-01T00:00:00Z; do
        flags="$flags -X k8s.io/kubernetes/vendor/k8s.io/$package.$pair"
    done
done
build() {
    echo "building $1"
    nice -n 10 $go build -ldflags "$flags" -o "$work/bin/$(basename "$1")" "k8s.io/kubernetes/$1"
}

build cmd/kubelet
# The one generated file that the source package lacks: the schema of all types, which the API server serves.
openapi=pkg/generated/openapi/zz_generated.openapi.go
if [ ! -e $openapi ]; then
    build vendor/k8s.io/kube-openapi/cmd/openapi-gen
    types=$(grep -rl --include='*.go' '+k8s:openapi-gen=' pkg/apis staging/src cmd plugin | grep -v _test.go |
        grep -v -e /code-generator/ -e /sample-apiserver/ | sed 's|^staging/src/|vendor/|; s|/[^/]*$||' | sort -u |
        sed 's|^|k8s.io/kubernetes/|' | paste -sd,)
    nice -n 10 "$work/bin/openapi-gen" --logtostderr -i "$types" -p k8s.io/kubernetes/pkg/generated/openapi \
        -O zz_generated.openapi -h hack/boilerplate/boilerplate.generatego.txt -r "$work/openapi.report" >/dev/null
    rm "$work/bin/openapi-gen"
fi
for program in kube-apiserver kube-controller-manager kube-scheduler; do build cmd/$program; done

# What was needed for that takes ten times the room.
cd "$directory/.."
rm -rf "$directory"
mkdir "$directory"
mv "$work/bin" "$directory/bin"
chmod -R u+w "$work"
rm -rf "$work"
