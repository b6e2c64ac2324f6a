//! How much processor time this process may use: the quota of its control groups.
//!
//! Place in the flow: `machine` cuts what it has measured by it. A measurement of a few milliseconds is over before the
//! system begins to hold a process back.
//!
//! Invariant: the least quota of all groups that this process is in counts, up to the root that can be seen. What
//! cannot be read is no limit.
//!
//! Deliberately absent: anything but Linux, where the files are missing.

/// Where version 1 of control groups has its `cpu` controller.
const CPU_FOLDERS: [&str; 3] =
    ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuacct,cpu"];
/// Where version 2 has all.
const UNIFIED: &str = "/sys/fs/cgroup";

/// Processors' worth of time that this process may use; `None` without a limit.
pub(crate) fn cpus() -> Option<f64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    cpus_of(&read("/proc/self/cgroup")?, read)
}

/// The same from the list of this process's groups, and a way to read files.
fn cpus_of(groups: &str, read: impl Fn(&str) -> Option<String>) -> Option<f64> {
    let mut least = None;
    let mut take = |quota: Option<f64>| {
        if let Some(quota) = quota {
            least = Some(least.map_or(quota, |least: f64| least.min(quota)));
        }
    };
    // `4:cpu,cpuacct:/some/group`, or with version 2 `0::/some/group`.
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        for group in and_those_above(path) {
            if controllers.is_empty() {
                take(read(&format!("{UNIFIED}{group}/cpu.max")).and_then(|text| version_2(&text)));
            } else if controllers.split(',').any(|name| name == "cpu") {
                for folder in CPU_FOLDERS {
                    let file = |name: &str| read(&format!("{folder}{group}/{name}"));
                    let both = file("cpu.cfs_quota_us").zip(file("cpu.cfs_period_us"));
                    take(both.and_then(|(quota, period)| version_1(&quota, &period)));
                }
            }
        }
    }
    least
}

/// A group, and all that it is in. In a container the path may be one of the machine outside; its own root is there in any
/// case.
fn and_those_above(path: &str) -> impl Iterator<Item = &str> {
    let path = path.trim_end_matches('/');
    // Outside of what can be seen, as `/../other` is.
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
    fn version_2_has_one_file_a_group_and_the_least_counts() {
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
    fn what_cannot_be_read_is_no_limit() {
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
