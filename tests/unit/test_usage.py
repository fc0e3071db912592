"""The accounts of control groups, on files laid out as a kernel of v1, v2 or both has them."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from minit.linux.mountinfo import parse_line
from minit.stage0.reports.usage import (
    Hierarchy,
    Usage,
    find_group,
    find_hierarchies,
    parse_blkio,
    parse_io,
    parse_table,
    read_usage,
)

V1_NAMES = ("cpu", "cpuacct", "memory", "pids", "blkio")


def write(directory: Path, files: dict[str, str]) -> None:
    """Make a group with these files."""
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name).write_text(text)


def v2_group(directory: Path) -> None:
    """Make a group of v2 that has used something of everything."""
    write(
        directory,
        {
            "cpu.stat": "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\nthrottled_usec 20\n",
            "cpu.max": "max 100000\n",
            "memory.current": "1000\n",
            "memory.stat": "anon 600\ninactive_file 300\nactive_file 100\npgfault 8\npgmajfault 4\n",
            "memory.peak": "2000\n",
            "memory.max": "max\n",
            "memory.swap.current": "50\n",
            "memory.swap.max": "60\n",
            "memory.events": "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\n",
            "pids.current": "3\n",
            "pids.max": "10\n",
            "io.stat": "8:0 rbytes=100 wbytes=200 rios=1 wios=2 dbytes=0\n8:16 rbytes=10 wbytes=20 rios=3 wios=4\n",
        },
    )


def v1_groups(top: Path) -> list[Hierarchy]:
    """Make a group `g` in the hierarchies of v1, and return those."""
    stat = "nr_periods 5\nnr_throttled 2\nthrottled_time 20000\n"
    write(top / "cpu/g", {"cpu.stat": stat, "cpu.cfs_quota_us": "25000\n", "cpu.cfs_period_us": "100000\n"})
    write(top / "cpuacct/g", {"cpuacct.usage": "9\n", "cpuacct.usage_user": "4\n", "cpuacct.usage_sys": "5\n"})
    stat = "rss 1\ntotal_rss 600\ntotal_inactive_file 300\ntotal_pgfault 8\ntotal_pgmajfault 4\ntotal_swap 50\n"
    write(
        top / "memory/g",
        {
            "memory.usage_in_bytes": "1000\n",
            "memory.limit_in_bytes": "9223372036854771712\n",
            "memory.max_usage_in_bytes": "2000\n",
            "memory.stat": stat,
            "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        },
    )
    write(top / "pids/g", {"pids.current": "3\n", "pids.max": "10\n"})
    write(
        top / "blkio/g",
        {
            "blkio.throttle.io_service_bytes_recursive": "8:0 Read 100\n8:0 Write 200\n8:16 Read 10\nTotal 310\n",
            "blkio.throttle.io_serviced_recursive": "Total 0\n",
        },
    )
    return [Hierarchy(mount_point=str(top / name), controllers=frozenset({"rw", name})) for name in V1_NAMES]


def test_v2(tmp_path: Path) -> None:
    """Times are in nanoseconds, no limit is None, and input and output are summed over all devices."""
    v2_group(tmp_path / "g")
    assert read_usage(find_group([Hierarchy(mount_point=str(tmp_path))], "g")) == Usage(
        cpu_ns=1_500_000_000,
        cpu_user_ns=1_000_000_000,
        cpu_system_ns=500_000_000,
        cpu_throttled_ns=20_000,
        memory_bytes=1000,
        memory_working_set_bytes=700,
        memory_anonymous_bytes=600,
        memory_peak_bytes=2000,
        page_faults=8,
        major_page_faults=4,
        swap_bytes=50,
        swap_limit_bytes=60,
        processes=3,
        processes_limit=10,
        read_bytes=110,
        written_bytes=220,
        reads=4,
        writes=6,
        oom_kills=1,
    )


def test_v1(tmp_path: Path) -> None:
    """The same from the files of v1, where no limit is a very large number."""
    assert read_usage(find_group(v1_groups(tmp_path), "g")) == Usage(
        cpu_ns=9,
        cpu_user_ns=4,
        cpu_system_ns=5,
        cpu_throttled_ns=20_000,
        cpu_limit_millicores=250,
        memory_bytes=1000,
        memory_working_set_bytes=700,
        memory_anonymous_bytes=600,
        memory_peak_bytes=2000,
        page_faults=8,
        major_page_faults=4,
        swap_bytes=50,
        processes=3,
        processes_limit=10,
        read_bytes=110,
        written_bytes=200,
        reads=0,
        writes=0,
        oom_kills=1,
    )


def test_a_hybrid_machine(tmp_path: Path) -> None:
    """Counts of both are taken from v1, in any order of mounts; counts of v2 alone from there."""
    hierarchies = v1_groups(tmp_path)
    write(tmp_path / "unified/g", {"cpu.stat": "usage_usec 1\nuser_usec 1\nsystem_usec 1\n"})
    unified = Hierarchy(mount_point=str(tmp_path / "unified"))
    expected = read_usage(find_group(hierarchies, "g"))
    assert read_usage(find_group([unified, *hierarchies], "g")) == expected
    assert read_usage(find_group([*hierarchies, unified], "g")) == expected
    assert read_usage(find_group([unified], "g")).cpu_ns == 1000


def test_a_group_that_is_gone(tmp_path: Path) -> None:
    """Nothing is known about it, and that is no error."""
    assert find_group([Hierarchy(mount_point=str(tmp_path))], "g") == []
    assert read_usage([(Hierarchy(mount_point=str(tmp_path)), str(tmp_path / "g"))]) == Usage()


def test_hierarchies_among_mounts() -> None:
    """Each hierarchy is found once, at its first mount; other file systems are none."""
    lines = (
        "30 25 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755",
        "31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate",
        "32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
        "33 30 0:28 / /mnt/again rw - cgroup cgroup rw,cpu,cpuacct",
    )
    found = find_hierarchies([parse_line(line) for line in lines])
    assert [hierarchy.mount_point for hierarchy in found] == ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpu,cpuacct"]
    assert found[0].controllers == frozenset() and {"cpu", "cpuacct"} <= found[1].controllers


@given(st.text())
def test_files_of_any_content(text: str) -> None:
    """Reading any file finds numbers or nothing."""
    for parse in (parse_table, parse_io, parse_blkio):
        assert all(isinstance(value, int) for value in parse(text).values())
