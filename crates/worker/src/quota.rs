//! Limits of processor time and memory from this process's control groups.
//!
//! Place in the flow: `machine` reduces measured speeds by the quota and free memory by the limit. A measurement of a few
//! milliseconds ends before the system throttles the process, and the system's free memory is not the group's.
//!
//! Invariant: the smallest limit of all groups of this process counts, up to the visible root. A limit that
//! cannot be read is ignored.
//!
//! Deliberately absent: systems other than Linux, where the files are missing.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a quota counts.
const FRESH: Duration = Duration::from_secs(1);

/// Mount points of the `cpu` controller in version 1 of control groups.
const CPU_FOLDERS: [&str; 3] =
    ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuacct,cpu"];
/// Mount points of its `memory` controller.
const MEMORY_FOLDERS: [&str; 1] = ["/sys/fs/cgroup/memory"];
/// Mount point of version 2.
const UNIFIED: &str = "/sys/fs/cgroup";

/// Number of processors whose time this process may use; `None` without a limit.
pub(crate) fn cpus() -> Option<f64> {
    cpus_of(&own_groups()?, read)
}

/// The same, read at most once in `FRESH`: each small product asks for it.
pub(crate) fn recent_cpus() -> Option<f64> {
    static LAST: Mutex<Option<(Instant, Option<f64>)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    match *last {
        Some((at, cpus)) if at.elapsed() < FRESH => cpus,
        _ => {
            let cpus = cpus();
            *last = Some((Instant::now(), cpus));
            cpus
        }
    }
}

/// Bytes of memory that this process's groups may use in all; `None` without a limit.
pub(crate) fn memory_bytes() -> Option<u64> {
    memory_of(&own_groups()?, read)
}

fn own_groups() -> Option<String> {
    read("/proc/self/cgroup")
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The same from the text of `/proc/self/cgroup`, and a function that reads files.
fn cpus_of(groups: &str, read: impl Fn(&str) -> Option<String>) -> Option<f64> {
    let limits = folders_of(groups, "cpu", &CPU_FOLDERS).into_iter().filter_map(|folder| {
        let file = |name: &str| read(&format!("{}/{name}", folder.path));
        if folder.is_unified {
            return version_2(&file("cpu.max")?);
        }
        version_1(&file("cpu.cfs_quota_us")?, &file("cpu.cfs_period_us")?)
    });
    limits.reduce(f64::min)
}

/// The same for memory.
fn memory_of(groups: &str, read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let limits = folders_of(groups, "memory", &MEMORY_FOLDERS).into_iter().filter_map(|folder| {
        let name = if folder.is_unified { "memory.max" } else { "memory.limit_in_bytes" };
        // `max` is no number, and no limit. Without a limit, version 1 has a number larger than any memory.
        read(&format!("{}/{name}", folder.path))?.trim().parse().ok()
    });
    limits.min()
}

/// A group's folder.
struct Folder {
    path: String,
    is_unified: bool,
}

/// The folders of a controller's groups that contain this process.
fn folders_of(groups: &str, controller: &str, version_1: &[&str]) -> Vec<Folder> {
    let mut folders = Vec::new();
    // `4:cpu,cpuacct:/some/group`, or with version 2 `0::/some/group`.
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let is_unified = controllers.is_empty();
        if !is_unified && !controllers.split(',').any(|name| name == controller) {
            continue;
        }
        let homes = if is_unified { &[UNIFIED] } else { version_1 };
        for group in with_ancestors(path) {
            folders.extend(homes.iter().map(|home| Folder { path: format!("{home}{group}"), is_unified }));
        }
    }
    folders
}

/// A group, and all groups that contain it. In a container the path may be that of the host; the container's own root is
/// included in any case.
fn with_ancestors(path: &str) -> impl Iterator<Item = &str> {
    let path = path.trim_end_matches('/');
    // A path outside the visible part, such as `/../other`.
    let path = if path.contains("/..") { "" } else { path };
    std::iter::successors(Some(path), |path| path.rfind('/').map(|at| &path[..at]))
}

/// `150000 100000`, or `max 100000`.
fn version_2(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    version_1(quota, period)
}

/// `150000` and `100000`, or `-1` and `100000`.
fn version_1(quota_us: &str, period_us: &str) -> Option<f64> {
    let (quota, period) = (quota_us.trim().parse::<u32>().ok()?, period_us.trim().parse::<u32>().ok()?);
    (quota > 0 && period > 0).then(|| f64::from(quota) / f64::from(period))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with these files.
    fn quota(groups: &str, files: &[(&str, &str)]) -> Option<f64> {
        cpus_of(groups, |path| {
            files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn version_2_has_one_file_for_each_group_and_the_least_limit_counts() {
        let groups = "0::/user.slice/board.service\n";
        let own = ("/sys/fs/cgroup/user.slice/board.service/cpu.max", "150000 100000\n");
        let above = ("/sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
        assert_eq!(quota(groups, &[own, above]), Some(1.5));
        assert_eq!(quota(groups, &[own, ("/sys/fs/cgroup/user.slice/cpu.max", "50000 100000\n")]), Some(0.5));
        assert_eq!(quota(groups, &[above]), None);
        assert_eq!(quota("0::/\n", &[("/sys/fs/cgroup/cpu.max", "400000 100000")]), Some(4.0));
    }

    #[test]
    fn version_1_has_two_files_wherever_its_controller_is() {
        let groups = "11:memory:/docker/17ab\n4:cpu,cpuacct:/docker/17ab\n1:name=systemd:/docker/17ab\n";
        for folder in ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuacct,cpu"] {
            // Inside the container its group is the root.
            let files = [
                (format!("{folder}/cpu.cfs_quota_us"), "25000\n"),
                (format!("{folder}/cpu.cfs_period_us"), "50000\n"),
                ("/sys/fs/cgroup/memory/docker/17ab/cpu.cfs_quota_us".to_owned(), "1\n"),
            ];
            let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), *text)).collect();
            assert_eq!(quota(groups, &files), Some(0.5));
        }
        let unlimited = [
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ];
        assert_eq!(quota(groups, &unlimited), None);
    }

    #[test]
    fn memory_is_limited_by_the_group_and_all_groups_above_it() {
        let memory = |groups: &str, files: &[(&str, &str)]| {
            memory_of(groups, |path| {
                files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned())
            })
        };
        let root = ("/sys/fs/cgroup/memory.max", "max\n");
        let above = ("/sys/fs/cgroup/lab/memory.max", "2147483648\n");
        let own = ("/sys/fs/cgroup/lab/pi1/memory.max", "536870912\n");
        assert_eq!(memory("0::/lab/pi1\n", &[root, above, own]), Some(512 << 20));
        assert_eq!(memory("0::/lab/pi2\n", &[root, above, own]), Some(2 << 30));
        assert_eq!(memory("0::/\n", &[root, above, own]), None);
        let groups = "4:memory:/lab/pi1\n1:cpu:/other\n0::/\n";
        let root = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        let own = ("/sys/fs/cgroup/memory/lab/pi1/memory.limit_in_bytes", "134217728\n");
        let other = ("/sys/fs/cgroup/memory/other/memory.limit_in_bytes", "1\n");
        assert_eq!(memory(groups, &[root, own, other]), Some(128 << 20));
        assert_eq!(memory(groups, &[other]), None);
    }

    #[test]
    fn an_unreadable_limit_is_ignored() {
        let file = "/sys/fs/cgroup/cpu.max";
        for text in
            ["", "max", "100000", "0 100000", "5 0", "-5 100000", "x 100000", "99999999999 100000", "1 2 3"]
        {
            assert_eq!(quota("0::/\n", &[(file, text)]), None, "{text:?}");
        }
        for groups in ["", "0", "0:", "0::", "nonsense\n\n", "3:cpuset:/\n"] {
            let quota = quota(groups, &[("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "1")]);
            assert_eq!(quota, None, "{groups:?}");
        }
        // Another group's folder is not ours to look at.
        let outside = quota("0::/../other\n", &[("/sys/fs/cgroup/../other/cpu.max", "1 2"), (file, "3 1")]);
        assert_eq!(outside, Some(3.0));
    }
}
