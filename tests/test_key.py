"""`bramble key`: where the cluster key is, its permissions, and messages about a bad key."""

import os
import re
import stat
import subprocess
from contextlib import contextmanager

import pytest
from helpers import Run, assert_refused, bramble, succeed
from lacking import skip

FORM = r"bramble1(-[0-9a-hjkmnp-tv-z]{8}){4}-[0-9a-hjkmnp-tv-z]{4}"
ZERO = "bramble1-00000000-00000000-00000000-00000000-81fn"


@pytest.fixture
def home(tmp_path):
    """A home without a key, and no other place for one."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    return {"HOME": str(folder), "XDG_CONFIG_HOME": ""}


@contextmanager
def umask(bits):
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def key_file(folder, text=ZERO + "\n", bits=0o600):
    """A key file with this text, and the environment that names the file."""
    path = folder / "key"
    path.write_text(text)
    path.chmod(bits)
    return path, {"BRAMBLE_KEY_FILE": str(path)}


def shown(env, *options):
    return succeed("key", "show", *options, env=env).out


@pytest.mark.parametrize("bits", [0o000, 0o022, 0o077, 0o177])
def test_a_new_key_is_for_its_owner_only_whatever_the_umask(tmp_path, home, bits):
    if bits & 0o100 and os.geteuid() != 0:
        skip("root", "only root can use folders that a umask of 177 makes")
    with umask(bits):
        result = succeed("key", "new", env=home)
    path = tmp_path / "home/.config/bramble/key"
    assert result.out == f"{path}\n"
    assert mode(path) == 0o600
    for folder in (path.parent, path.parent.parent):
        assert mode(folder) == 0o700 & ~bits
    assert os.listdir(path.parent) == ["key"]
    assert re.fullmatch(FORM + "\n", path.read_text())
    assert shown(home) == path.read_text()


def test_the_key_is_shown_by_show_only_and_its_id_is_no_secret(home):
    made = succeed("key", "new", env=home)
    text, name = shown(home), shown(home, "--id")
    assert re.fullmatch(r"[0-9a-f]{4}-[0-9a-f]{4}\n", name)
    assert name.strip() in made.err and f"< {made.out.strip()}" in made.err
    assert not re.search(FORM, made.out + made.err)
    assert succeed("key", "path", env=home).out == made.out
    again = succeed("key", "new", "--force", env=home)
    assert shown(home) != text and shown(home, "--id") != name and again.out == made.out


def test_the_command_for_another_machine_works_there(tmp_path, home):
    made = succeed("key", "new", env=home)
    command = re.search(r"ssh pi1 '(.*)' < (.*)", made.err)
    there = tmp_path / "there"
    there.mkdir()
    other = {"HOME": str(there), "XDG_CONFIG_HOME": ""}
    with open(command[2], "rb") as key:
        subprocess.run(["sh", "-c", command[1]], stdin=key, check=True, env={**os.environ, **other})
    assert shown(other) == shown(home)


def test_a_key_that_is_there_stays_unless_force_is_given(tmp_path, home):
    succeed("key", "new", env=home)
    before = shown(home)
    assert_refused(bramble("key", "new", env=home), 1, ["home/.config/bramble/key", "--force"])
    assert shown(home) == before
    path = tmp_path / "home/.config/bramble/key"
    path.chmod(0o644)
    succeed("key", "new", "--force", env=home)
    assert shown(home) != before and mode(path) == 0o600
    assert os.listdir(path.parent) == ["key"]


def test_of_many_that_make_a_key_at_once_one_does(tmp_path, home):
    runs = [Run("key", "new", env=home) for _ in range(8)]
    results = [run.finish() for run in runs]
    assert sorted(result.code for result in results) == [0] + [1] * 7
    made = next(result for result in results if result.code == 0)
    assert shown(home, "--id").strip() in made.err
    assert os.listdir(tmp_path / "home/.config/bramble") == ["key"]


def test_the_variable_goes_before_the_named_file_the_configuration_and_the_home(tmp_path, home):
    config, named = tmp_path / "config", tmp_path / "named"
    steps = [{}, {"XDG_CONFIG_HOME": str(config)}, {"BRAMBLE_KEY_FILE": str(named)}]
    env, seen = dict(home), []
    for step in steps:
        env |= step
        succeed("key", "new", env=env)
        seen.append(shown(env))
    assert (config / "bramble/key").is_file() and named.is_file() and len(set(seen)) == 3
    env["BRAMBLE_KEY"] = ZERO
    assert shown(env) == ZERO + "\n"
    path = succeed("key", "path", env=env)
    assert path.out == f"{named}\n" and "BRAMBLE_KEY is set" in path.err
    assert "BRAMBLE_KEY is set" in succeed("key", "new", "--force", env=env).err
    # Empty counts as not set.
    assert shown({**env, "BRAMBLE_KEY": "", "BRAMBLE_KEY_FILE": ""}) == seen[1]


def test_a_relative_name_is_below_the_current_folder(tmp_path):
    env = {"BRAMBLE_KEY_FILE": "mine"}
    assert succeed("key", "new", env=env, cwd=tmp_path).out == "mine\n"
    assert mode(tmp_path / "mine") == 0o600


def test_without_a_key_or_a_home_the_way_out_is_said(home):
    assert_refused(bramble("key", "show", env=home), 1, [r"\.config/bramble/key", "bramble key new"])
    homeless = {"HOME": "", "XDG_CONFIG_HOME": ""}
    for verb in ("new", "show", "path"):
        assert_refused(bramble("key", verb, env=homeless), 1, ["HOME", "BRAMBLE_KEY_FILE"])
    assert shown({**homeless, "BRAMBLE_KEY": ZERO}) == ZERO + "\n"


def test_slips_of_the_command_line_are_usage_errors(home):
    help_page = bramble("key", env=home)
    assert help_page.code == 2 and "Print the key" in help_page.err and help_page.out == ""
    for slip in (["key", "make"], ["key", "new", "--id"], ["key", "show", "all"]):
        assert_refused(bramble(*slip, env=home), 2, ["--help"])


@pytest.mark.parametrize(("text", "culprit"), [
    (ZERO[:-1] + "m", "wrong or missing"),
    (ZERO.replace("00-", "0-", 1), "35 characters"),
    (ZERO.replace("0", "u", 1), "character 10"),
    (ZERO.replace("bramble1", "bramble2"), "newer bramble"),
    ("hunter2hunter2", "does not begin with bramble1-"),
    ("bramble1-ф", "character 10"),
])
def test_what_is_wrong_with_a_key_is_said_without_showing_it(tmp_path, text, culprit):
    _, named = key_file(tmp_path, text)
    for env, place in (({"BRAMBLE_KEY": text}, "BRAMBLE_KEY: "), (named, "/key: ")):
        result = bramble("key", "show", env=env)
        assert_refused(result, 1, [place, culprit, "bramble key show"])
        assert text not in result.err and "00000000" not in result.err


def test_a_variable_that_is_no_text_is_refused():
    assert_refused(bramble("key", "show", env={"BRAMBLE_KEY": b"bramble1-\xff\xfe"}), 1, ["BRAMBLE_KEY"])


@pytest.mark.parametrize("text", [ZERO.upper() + "\r\n", f"\n  {ZERO}  \n\n", ZERO.replace("0", "O"), ZERO])
def test_forgivable_forms_of_a_key_are_read(tmp_path, text):
    assert shown(key_file(tmp_path, text)[1]) == ZERO + "\n"


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620, 0o601, 0o666])
def test_a_key_that_others_can_reach_is_refused(tmp_path, bits):
    path, env = key_file(tmp_path, bits=bits)
    assert_refused(bramble("key", "show", env=env), 1, [f"chmod 600 {re.escape(str(path))}"])
    path.chmod(0o400)
    assert shown(env) == ZERO + "\n"


def test_a_credential_of_a_service_may_show_the_mask_of_its_access_list(tmp_path):
    _, env = key_file(tmp_path, bits=0o440)
    assert shown({**env, "CREDENTIALS_DIRECTORY": str(tmp_path)}) == ZERO + "\n"
    (tmp_path / "other").mkdir()
    elsewhere = {**env, "CREDENTIALS_DIRECTORY": str(tmp_path / "other")}
    assert_refused(bramble("key", "show", env=elsewhere), 1, ["chmod 600"])


@pytest.mark.parametrize(("text", "culprit"), [
    ("", "empty"),
    ("\n\n", "empty"),
    (f"# mine\n{ZERO}\n", "several lines"),
    (f"{ZERO}\n{ZERO}\n", "several lines"),
    (ZERO + " " * 1024, "longer than 1024"),
])
def test_a_file_that_is_not_one_line_is_refused(tmp_path, text, culprit):
    path, env = key_file(tmp_path, text)
    assert_refused(bramble("key", "show", env=env), 1, [re.escape(str(path)), culprit])


def test_what_is_no_file_is_refused_at_once_and_never_replaced(tmp_path):
    folder, pipe = tmp_path / "folder", tmp_path / "pipe"
    folder.mkdir()
    os.mkfifo(pipe, 0o600)
    for path in (folder, pipe):
        env = {"BRAMBLE_KEY_FILE": str(path)}
        for verb in (["show"], ["new"], ["new", "--force"]):
            assert_refused(bramble("key", *verb, env=env, deadline_s=5), 1, [str(path), "not a file"])
    assert folder.is_dir() and pipe.is_fifo()
    missing = {"BRAMBLE_KEY_FILE": str(tmp_path / "missing")}
    assert_refused(bramble("key", "show", env=missing), 1, ["BRAMBLE_KEY_FILE", "missing", "bramble key new"])
    below = {"BRAMBLE_KEY_FILE": str(key_file(tmp_path)[0] / "key")}
    for verb in ("new", "show"):
        assert_refused(bramble("key", verb, env=below), 1, ["key/key"])
