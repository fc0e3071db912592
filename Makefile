# The two commands a newcomer needs: `make demo` and `make test`. Both set up what they need, as root on Debian 12+.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNNING := $(VENV)/.running
STAMP := $(VENV)/.installed
RUNNING_LOCK := requirements.txt
LOCK := tests/requirements.txt
KERNEL := build/kernel
FULL_KERNEL := build/full-kernel
ARM64 := build/arm64/disk
FIRMWARE := build/firmware
PEERS := build/peers
CLEAN := build/clean
SYSTEMD := build/systemd
LIBRARIES := build/libraries
# For which the Debian package has libraries: from Debian 12's to Debian 13's.
PYTHONS := 3.11 3.12 3.13
BUILDER := build/builder
SITE := build/site
KUBERNETES := build/kubernetes
SUPERVISORS := build/supervisors
# What running takes, and what the tests take beside.
PACKAGES := python3-venv gcc libc6-dev binutils busybox-static libudev1 libpython3-dev
TEST_PACKAGES := strace tmux procps util-linux iproute2 uidmap slirp4netns nftables iptables containernetworking-plugins libseccomp2 \
	e2fsprogs xfsprogs gpg gpg-agent gpgv
# What builds what is published. The stage1 image carries the Python of this Debian, with which pods take half the memory.
BUILDER_SUITE := trixie
BUILDER_PACKAGES := python3,gcc,libc6-dev,binutils,libudev1,libpython3-dev
CLEAN_PACKAGES := python3,python3-venv,busybox-static
SYSTEMD_PACKAGES := systemd-sysv,udev,dbus,dbus-user-session,libpam-systemd,uidmap,slirp4netns,python3,busybox-static,kmod,procps
# The static library of Debian's interpreter. Another one has its own, or none.
HAS_LIBRARY := import os, sys, sysconfig; path = map(sysconfig.get_config_var, ("LIBPL", "LIBRARY")); \
	sys.exit(sys.base_prefix == "/usr" and not os.path.exists("/".join(path)))

.PHONY: demo site pictures proto numbers test test-arm64 test-kube test-long man deb dist bench clean packages kernel firmware disk-programs \
	test-packages supervisors lock

# Packages are asked for only when a program is missing, so that a prepared machine needs no network.
INSTALL = if [ -n "$$missing" ]; then \
	[ "$$(id -u)" = 0 ] || { echo "missing:$$missing; let root run: apt-get install $(1)"; exit 1; }; echo "installing:$$missing"; \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(1) >/dev/null; fi
packages:
	@missing=""; for program in gcc strip busybox; do \
		command -v $$program >/dev/null || missing="$$missing $$program"; done; \
	$(PYTHON) -c 'import ensurepip' 2>/dev/null || missing="$$missing venv"; \
	$(PYTHON) -c '$(HAS_LIBRARY)' 2>/dev/null || missing="$$missing libpython"; \
	$(call INSTALL,--no-install-recommends $(PACKAGES))

test-packages: packages
	@missing=""; for program in strace tmux ps ip unshare nft iptables mkfs.ext4 mkfs.xfs newuidmap slirp4netns gpg \
			gpgv gpg-agent /usr/lib/cni/ptp; do \
		command -v $$program >/dev/null || missing="$$missing $$program"; done; \
	$(call INSTALL,$(TEST_PACKAGES))

# Nothing but what is in the lock, and minit is built by the setuptools in it. Python compiles what is imported.
$(RUNNING): pyproject.toml $(RUNNING_LOCK) | packages
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --require-hashes --requirement $(RUNNING_LOCK)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# The test kit is four times as large.
$(STAMP): $(RUNNING) $(LOCK) | test-packages
	$(BIN)/pip install --quiet --require-hashes --requirement $(LOCK)
	touch $@

# The newest of what pyproject.toml allows, for all versions of Python and processors; both locks have the same versions.
COMPILE = UV_CUSTOM_COMPILE_COMMAND="make lock" build/uv/bin/uv pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes
lock:
	$(PYTHON) -m venv build/uv && build/uv/bin/pip install --quiet uv
	$(COMPILE) --upgrade --extra test --extra fuzz --output-file $(LOCK) pyproject.toml
	$(COMPILE) --upgrade --extra checkout --constraint $(LOCK) --output-file $(RUNNING_LOCK) pyproject.toml

# The messages of cri, of their description.
proto: $(STAMP)
	$(BIN)/protoc --python_out=. --pyi_out=. minit/cri/api/cri.proto

# The numbers of system calls, by the kernel's headers; linux-libc-dev-armhf-cross has those of arm.
numbers: $(STAMP)
	$(BIN)/python contrib/syscallnumbers.py

demo: $(RUNNING)
	PATH="$(CURDIR)/$(BIN):$$PATH" sh demo/run.sh

# A worker more than processors, up to eight, since many tests wait.
PYTEST := $(BIN)/python -m pytest -q -n $(shell n=$$(nproc); echo $$((n < 8 ? n + 1 : 8))) --dist worksteal

# The few that fail when the machine is busy with the others have to pass alone; the last line names them.
test: export MINIT_TEST_STRICT := 1
test: $(STAMP) kernel firmware supervisors
	$(PYTEST) --cache-clear tests || { test $$? = 1 && $(BIN)/python -m tests.support.again; }

# What boots machines, for the tests that do; where it cannot be had they are skipped.
kernel:
	@test "$$(uname -m)" != x86_64 || $(MAKE) --no-print-directory $(KERNEL) || \
		echo "no qemu or no kernel for it: machines are not booted"

# The kernel is unpacked and not installed, since it is not for the machine it is on.
$(KERNEL):
	@echo "getting a kernel and qemu"; apt-get update -qq
	@command -v qemu-system-x86_64 >/dev/null || \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-system-x86 >/dev/null
	@rm -rf $@.new && mkdir -p $@.new && cd $@.new && apt-get download -qq -o APT::Sandbox::User=root \
		$$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9]\)/\1/p' | head -n 1)
	@cd $@.new && dpkg-deb -x linux-image-*.deb . && rm linux-image-*.deb
	@mv $@.new $@

# With drivers for boards, which the one above lacks; 70 MB that become 400.
$(FULL_KERNEL):
	@echo "getting a kernel with all drivers"; apt-get update -qq
	@rm -rf $@.new && mkdir -p $@.new && cd $@.new && apt-get download -qq -o APT::Sandbox::User=root \
		$$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9]\)/\1/p' | head -n 1)
	@cd $@.new && dpkg-deb -x linux-image-*.deb . && rm linux-image-*.deb
	@mv $@.new $@

# Machines of arm64, and pods on one, on whatever processor this is.
test-arm64: $(STAMP) $(ARM64) disk-programs
	MINIT_TEST_STRICT=1 MINIT_TEST_ARM64=1 $(PYTEST) --ignore tests/boot/test_network_kinds.py tests/boot

# The machine that builds stage1 images for them, whose kernel they boot too; nothing of it is installed.
$(ARM64): | $(STAMP)
	@echo "getting a kernel and a Debian of arm64"
	@command -v qemu-system-aarch64 >/dev/null && test -e /usr/share/qemu-efi-aarch64 || { apt-get update -qq; \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-system-arm qemu-efi-aarch64 \
		>/dev/null; }
	@rm -rf $(@D)/libraries && $(BIN)/pip freeze | grep -E '^(backports.zstd|hypothesis|protobuf|PyYAML)==' | \
		$(BIN)/pip install --quiet --no-deps --target $(@D)/libraries --python-version 3.11 --only-binary :all: \
		--platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 --platform manylinux_2_28_aarch64 \
		--requirement /dev/stdin
	@$(BIN)/python -c 'from pathlib import Path; from minit.image.foreign import ARM64, fetch_machine; \
		from minit.base.progress import silent; from tests.support.podmachine import DEBIAN_PACKAGES; \
		fetch_machine(ARM64, Path("$(@D)"), silent, DEBIAN_PACKAGES)'

# What makes disks.
disk-programs:
	@missing=""; for program in mksquashfs veritysetup mkfs.vfat mcopy sfdisk; do \
		command -v $$program >/dev/null || missing="$$missing $$program"; done; \
	[ -z "$$missing" ] || { apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
		--no-install-recommends squashfs-tools cryptsetup-bin dosfstools mtools fdisk >/dev/null; }

# What boots from them; the firmware and its stub are not for this machine either.
firmware:
	@test "$$(uname -m)" != x86_64 || $(MAKE) --no-print-directory disk-programs $(FIRMWARE) || \
		echo "no firmware for qemu: no machine boots from a disk"

$(FIRMWARE):
	@echo "getting a firmware"; apt-get update -qq
	@rm -rf $@.new && mkdir -p $@.new && cd $@.new && \
		apt-get download -qq -o APT::Sandbox::User=root ovmf systemd-boot-efi
	@cd $@.new && for package in *.deb; do dpkg-deb -x $$package . && rm $$package; done
	@mv $@.new $@

# What runs the services of contrib/, for the tests of those; unpacked, since a machine has one such program already.
supervisors:
	@$(MAKE) --no-print-directory $(SUPERVISORS) || echo "no supervisors from Debian: their services are not tried"

$(SUPERVISORS):
	@echo "getting runit, s6 and openrc"; apt-get update -qq
	@rm -rf $@.new && mkdir -p $@.new/root && cd $@.new && apt-get download -qq -o APT::Sandbox::User=root \
		$$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
		--no-enhances runit s6 openrc | grep -E '^(runit|s6|openrc|lib(skarnet|execline|s6|einfo|rc))' | sort -u)
	@cd $@.new && for package in *.deb; do dpkg-deb -x $$package root; done
	@cd $@.new/root && for place in bin sbin lib; do [ ! -e $$place ] || { cp -a $$place usr/ && rm -r $$place; }; done
	@mv $@.new/root $@ && rm -r $@.new

# What other machines of the benchmarks boot to, unpacked for the same reason.
$(PEERS):
	rm -rf $@.new && mkdir -p $@.new/root && cd $@.new && apt-get download -qq $$(apt-cache depends --recurse \
		--no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
		systemd udev s6 busybox-static | grep '^[a-z]' | sort -u)
	cd $@.new && for package in *.deb; do dpkg-deb -x $$package root; done
	mv $@.new/root $@ && rm -r $@.new

# A Debian of a suite with packages, below $@.new/root, by the mirrors and the proxy of this machine's apt.
MIRROR = { apt-get indextargets --format '$$(REPO_URI)' 'Label: $(1)' 2>/dev/null; echo http://deb.debian.org/$(2)/; } | head -n 1
USE_PROXY = eval "$$(apt-config shell http_proxy Acquire::http::Proxy https_proxy Acquire::https::Proxy 2>/dev/null)"; \
	export http_proxy https_proxy
BOOTSTRAP = command -v debootstrap >/dev/null || { apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
	--no-install-recommends debootstrap debian-archive-keyring >/dev/null; }; $(USE_PROXY); \
	rm -rf $@.new && mkdir -p $@.new && debootstrap --force-check-gpg --variant=minbase --include=$(2) $(1) $@.new/root \
	"$$($(call MIRROR,Debian,debian))" >$@.new/log || { tail -n 5 $@.new/log; false; }

# A Debian with Python and no compiler, on which what is published is tried; beside it what pip and apt install there.
$(CLEAN): $(STAMP)
	@echo "making a clean Debian"
	@$(call BOOTSTRAP,"$$(. /etc/os-release; echo $$VERSION_CODENAME)",$(CLEAN_PACKAGES))
	@mkdir $@.new/wheels
	@chroot $@.new/root apt-get clean
	@chroot $@.new/root apt-get install -qq -y --download-only \
		gcc libc6-dev binutils patchelf libudev1 libpython3-dev >/dev/null
	@$(BIN)/python -c 'import importlib.metadata as m; print(*m.requires("minit"), "setuptools<85", sep="\n")' | \
		grep -v extra | $(BIN)/pip download --quiet --dest $@.new/wheels --requirement /dev/stdin
	@mv $@.new $@

# The disk of a machine with systemd, which has ordinary users, for pods without root.
$(SYSTEMD):
	@echo "making a Debian with systemd"
	@$(call BOOTSTRAP,bookworm,$(SYSTEMD_PACKAGES))
	@rm -rf $@.new/root/var/cache/apt/archives/*.deb $@.new/root/var/lib/apt/lists/*
	@truncate -s 3G $@.new/disk && mkfs.ext4 -q -d $@.new/root $@.new/disk && rm -rf $@.new/root
	@rm -rf $@ && mv $@.new $@

# Nodes with a real kubelet: Debian 12's Kubernetes, whose source is built with its Go in some minutes, and kept.
test-kube: $(STAMP) $(KUBERNETES)
	MINIT_TEST_STRICT=1 $(BIN)/python -m pytest -q tests/kube

$(KUBERNETES):
	@missing=""; for program in /usr/lib/go-1.19/bin/go dpkg-source openssl; do \
		command -v $$program >/dev/null || missing=yes; done; test -z "$$missing" || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends golang-1.19-go dpkg-dev openssl \
		>/dev/null; }
	tests/kube/build.sh $@

test-long: $(STAMP) kernel firmware supervisors
	@test "$$(uname -m)" != x86_64 || $(MAKE) --no-print-directory $(FULL_KERNEL) || echo "no kernel with all drivers"
	@$(MAKE) --no-print-directory $(LIBRARIES) $(BUILDER) $(CLEAN) || echo "no clean Debian: nothing is installed on one"
	@$(MAKE) --no-print-directory $(SYSTEMD) || echo "no Debian with systemd: users without root are not tried on one"
	MINIT_TEST_STRICT=1 MINIT_TEST_LONG=1 $(PYTEST) --timeout 1200 tests

# docs/man/minit.1.in and what --help shows, in one page.
# The documents as pages, with every link checked.
site:
	@test -x $(SITE)/venv/bin/mkdocs || { $(PYTHON) -m venv $(SITE)/venv && $(SITE)/venv/bin/pip install --quiet 'mkdocs>=1.6,<2'; }
	@rm -rf $(SITE)/pages && mkdir -p $(SITE)/pages/contrib
	@cp *.md LICENSE $(SITE)/pages && cp -r docs $(SITE)/pages && cp contrib/README.md $(SITE)/pages/contrib
	$(SITE)/venv/bin/mkdocs build --strict

# What docs/ shows: screens of terminals, with pods on a network of their own, and bars of the last benchmarks.
pictures: $(STAMP) kernel
	$(BIN)/pip install --quiet --no-build-isolation --editable '.[pictures]'
	unshare --net --mount sh -c 'ip link set lo up && for place in /var/lib/cni /run/netns /run/minit; do \
		mkdir -p $$place && mount -t tmpfs none $$place || exit; done; exec $(BIN)/python -m demo.pictures'
	$(BIN)/python -m benchmarks.picture docs/pictures/benchmarks.json docs/pictures/benchmarks.svg

man: $(STAMP)
	$(BIN)/python -m minit.cli.manual docs/man/minit.1.in build/man/minit.1
	cp docs/man/minit-stage1.7 build/man/

deb: $(STAMP) $(LIBRARIES)
	$(BIN)/python contrib/debian/build.py --libraries $(LIBRARIES) --output build

# What is published of a version: wheel, sdist, Debian package and stage1 image, for processors like this one's.
# Root builds them in a Debian, so that Python and tools of the machine do not matter.
dist: $(LIBRARIES) $(BUILDER)
	$(BIN)/python contrib/dist.py --libraries $(LIBRARIES) --debian $(BUILDER)

$(BUILDER):
	@echo "making the Debian that builds"
	@$(call BOOTSTRAP,$(BUILDER_SUITE),$(BUILDER_PACKAGES))
	@echo "deb $$($(call MIRROR,Debian-Security,debian-security)) $(BUILDER_SUITE)-security main" \
		>>$@.new/root/etc/apt/sources.list
	@$(USE_PROXY); chroot $@.new/root sh -ec 'apt-get update -qq; apt-get upgrade -y -qq -o Dpkg::Use-Pty=0 >/dev/null; apt-get clean'
	@mv $@.new/root $@ && rm -r $@.new

# What the lock names, for each version.
$(LIBRARIES): $(RUNNING_LOCK) | $(RUNNING)
	@echo "getting libraries for Python $(PYTHONS)"; rm -rf $@.new
	@for version in $(PYTHONS); do $(BIN)/pip install --quiet --no-compile --no-deps --only-binary :all: \
		--python-version $$version --require-hashes --target $@.new/$$version --requirement $(RUNNING_LOCK) || exit; done
	@rm -rf $@ && mv $@.new $@

bench: $(STAMP)
	test "$$(uname -m)" != x86_64 || $(MAKE) $(KERNEL) $(PEERS)
	$(BIN)/python -m benchmarks --json build/benchmarks.json --earlier docs/pictures/benchmarks.json
	! $(BIN)/python -c 'import matplotlib' 2>/dev/null || \
		$(BIN)/python -m benchmarks.picture build/benchmarks.json build/benchmarks.svg

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
