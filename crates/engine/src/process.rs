//! Other processes of this machine, as /proc tells of them.

use std::fs::read_to_string;

/// No such process, or one that has ended and that nobody has waited for.
pub fn is_gone(pid: i32) -> bool {
    let stat = read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // pid (name) state …: the name may hold anything.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    pid <= 0 || matches!(state, None | Some('Z' | 'X' | 'x'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn who_has_ended_is_gone_though_nobody_has_waited_for_it() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        assert!(!is_gone(pid) && !is_gone(std::process::id() as i32));
        child.kill().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while !is_gone(pid) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(is_gone(pid), "it has ended");
        child.wait().unwrap();
        assert!(is_gone(pid) && is_gone(0) && is_gone(-1));
    }
}
