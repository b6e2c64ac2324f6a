//! Paths of groups and the values written to them, in temporary folders that imitate both versions.

use super::*;
use crate::verbs::network;

fn home(path: &str, is_unified: bool) -> Option<Home> {
    Some(Home { path: path.into(), is_unified })
}

#[test]
fn a_controller_is_where_it_is_mounted_and_version_1_goes_first() {
    let unified = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
    let reads = |text: &'static str| move |_: &Path| Some(text.to_owned());
    let both = Homes { cpu: home("/sys/fs/cgroup", true), memory: home("/sys/fs/cgroup", true) };
    assert_eq!(Homes::of(unified, reads("cpuset cpu io memory pids\n")), both);
    assert_eq!(Homes::of(unified, reads("cpuset cpu io pids\n")), Homes { memory: None, ..both });
    assert_eq!(Homes::of(unified, |_| None), Homes::default());
    let mixed = "cgroup /c/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\ncgroup /c/set cgroup rw,cpuset 0 0\n\
                 cgroup2 /c/unified cgroup2 rw 0 0\ntmpfs /cpu tmpfs rw,cpu 0 0\n";
    let homes = Homes { cpu: home("/c/cpu,cpuacct", false), memory: home("/c/unified", true) };
    assert_eq!(Homes::of(mixed, reads("memory cpu")), homes);
}

#[test]
fn a_quota_is_of_ten_milliseconds_unless_that_is_too_short() {
    let text = |cores| quota(cores, true).remove(0).value;
    assert_eq!(text(0.25), "2500 10000");
    assert_eq!(text(2.0), "20000 10000");
    assert_eq!(text(0.1), "1000 10000");
    assert_eq!(text(0.01), "1000 100000");
    assert_eq!(text(0.03), "1000 33334");
    let old: Vec<String> = quota(0.5, false).iter().map(|s| format!("{} {}", s.file, s.value)).collect();
    assert_eq!(old, ["cpu.cfs_period_us 10000", "cpu.cfs_quota_us 5000"]);
}

fn lab(homes: &Homes, limits: &MachineLimits) -> Lab {
    let machine = LabMachine {
        name: "pi1".to_owned(),
        address: network::address(1),
        namespace: network::namespace("x", "pi1"),
        groups: homes.groups("x", "pi1", limits),
        limits: limits.clone(),
    };
    Lab { name: "x".to_owned(), from: String::new(), key: false, maker: None, machines: vec![machine] }
}

/// A folder with the files that the kernel would create.
fn with_files(group: &Path, names: &[&str]) {
    fs::create_dir_all(group).unwrap();
    for name in names {
        fs::write(group.join(name), "").unwrap();
    }
}

#[test]
fn version_2_has_one_group_and_hands_its_controllers_down() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    let homes = Homes {
        cpu: Some(Home { path: path.to_owned(), is_unified: true }),
        memory: Some(Home { path: path.to_owned(), is_unified: true }),
    };
    let limits = MachineLimits { cores: Some(0.5), memory_bytes: Some(1 << 30), ..MachineLimits::default() };
    let lab = lab(&homes, &limits);
    let group = path.join("bramble-x/pi1");
    assert_eq!(lab.machines[0].groups, std::slice::from_ref(&group));
    with_files(&group, &["cpu.max", "memory.max", "memory.swap.max", "cgroup.procs"]);
    homes.make(&lab, &lab.machines[0]).unwrap();
    let read = |name: &str| fs::read_to_string(path.join(name)).unwrap();
    // The kernel would show both controllers; a plain file has only the value written last.
    assert_eq!(read("cgroup.subtree_control"), "+memory");
    assert_eq!(read("bramble-x/cgroup.subtree_control"), "+memory");
    assert_eq!(read("bramble-x/pi1/cpu.max"), "5000 10000");
    assert_eq!(read("bramble-x/pi1/memory.max"), "1073741824");
    assert_eq!(read("bramble-x/pi1/memory.swap.max"), "0");
    join(&lab.machines[0].groups).unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    assert_eq!(members(&[group]), BTreeSet::from([own]));
}

#[test]
fn version_1_has_a_group_for_each_controller() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| Some(Home { path: root.path().join(name), is_unified: false });
    let homes = Homes { cpu: at("cpu"), memory: at("memory") };
    let limits = MachineLimits { cores: Some(0.5), memory_bytes: Some(1 << 30), ..MachineLimits::default() };
    let lab = lab(&homes, &limits);
    let groups = ["cpu/bramble-x/pi1", "memory/bramble-x/pi1"].map(|name| root.path().join(name));
    assert_eq!(lab.machines[0].groups, groups);
    with_files(&groups[0], &["cpu.cfs_period_us", "cpu.cfs_quota_us"]);
    with_files(&groups[1], &["memory.limit_in_bytes"]);
    homes.make(&lab, &lab.machines[0]).unwrap();
    let read = |group: &Path, name: &str| fs::read_to_string(group.join(name)).unwrap();
    assert_eq!(read(&groups[0], "cpu.cfs_quota_us"), "5000");
    assert_eq!(read(&groups[1], "memory.limit_in_bytes"), "1073741824");
    assert!(!groups[0].join("memory.limit_in_bytes").exists());
    // Without a limit there is no group.
    assert_eq!(homes.groups("x", "pi1", &MachineLimits::default()), Vec::<PathBuf>::new());
}

#[test]
fn a_limit_that_cannot_be_had_is_refused_with_a_way_out() {
    let none = Homes::default();
    let cores = MachineLimits { cores: Some(1.0), ..MachineLimits::default() };
    let memory = MachineLimits { memory_bytes: Some(1 << 30), ..MachineLimits::default() };
    let said = |limits: &MachineLimits| none.check("pi1", limits).unwrap_err().text;
    assert!(said(&cores).starts_with("machine pi1: cores: ") && said(&cores).contains("leave cores out"));
    assert!(said(&memory).contains("cgroup_enable=memory"), "{}", said(&memory));
    assert!(none.check("pi1", &MachineLimits::default()).is_ok());
    let root = tempfile::tempdir().unwrap();
    let setting = Setting { file: "cpu.max", value: "1 2".to_owned(), is_optional: false };
    let failure = set(root.path(), &setting).unwrap_err().text;
    assert!(
        failure.contains("cpu.max: cannot be set to 1 2") && failure.contains("this kernel"),
        "{failure}"
    );
}
