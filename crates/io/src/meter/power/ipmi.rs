//! IPMI: what the server's own board measures, through `ipmitool`.
//!
//! Boards with DCMI answer `dcmi power reading`. Others have sensors in watts: one for the
//! whole server, or one for each power supply's input, which are added.

use super::{Found, Meter, Pace, Sample};
use crate::meter::Reason;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal};
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Names another program in `ipmitool`'s place.
pub(crate) const PROGRAM_ENV: &str = "FOREBAY_IPMITOOL";

/// A reading over the board's bus takes tenths of a second.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// Walking all of a board's sensors takes far longer.
const LIST_LIMIT: Duration = Duration::from_secs(30);

const OUTPUT_BYTES_MAX: usize = 256 << 10;

const SUPPLIES_MAX: usize = 16;

pub fn ipmi_program() -> OsString {
    std::env::var_os(PROGRAM_ENV).unwrap_or_else(|| "ipmitool".into())
}

/// Asks the board once, to learn how it answers.
pub fn open_ipmi(program: &OsString) -> Result<Found, Reason> {
    let dcmi = Bmc { program: program.clone(), way: PowerCommand::Dcmi };
    let bmc = match dcmi.watts() {
        Ok(_) => dcmi,
        Err(Failure::Program(reason)) => return Err(reason),
        Err(Failure::Answer(no_dcmi)) => {
            let listed = capture(program, &["sdr", "list", "full"], LIST_LIMIT)
                .map_err(|failure| format!("dcmi: {no_dcmi}; sensors: {}", failure.words()))?;
            let sensors = choose_sensors(&parse_sensors(&listed))
                .map_err(|reason| format!("dcmi: {no_dcmi}; sensors: {reason}"))?;
            Bmc { program: program.clone(), way: PowerCommand::Sensors(sensors) }
        }
    };
    Ok(Found { meters: vec![Box::new(bmc)], refused: Vec::new() })
}

struct Bmc {
    program: OsString,
    way: PowerCommand,
}

enum PowerCommand {
    Dcmi,
    /// Names of sensors that together are the server's power.
    Sensors(Vec<String>),
}

impl Bmc {
    fn watts(&self) -> Result<f64, Failure> {
        match &self.way {
            PowerCommand::Dcmi => {
                let text = capture(&self.program, &["dcmi", "power", "reading"], READ_LIMIT)?;
                parse_dcmi(&text).map_err(Failure::Answer)
            }
            PowerCommand::Sensors(names) => {
                let mut words = vec!["sensor", "reading"];
                words.extend(names.iter().map(String::as_str));
                let text = capture(&self.program, &words, READ_LIMIT)?;
                parse_readings(&text, names).map_err(Failure::Answer)
            }
        }
    }
}

impl Meter for Bmc {
    fn source(&self) -> &'static str {
        "ipmi"
    }

    fn scope(&self) -> &str {
        "server"
    }

    fn sample(&mut self) -> Result<Sample, Reason> {
        self.watts().map(Sample::Watts).map_err(Failure::words)
    }

    fn pace(&self) -> Pace {
        Pace::Slow(Duration::from_secs(1))
    }
}

/// `ipmitool dcmi power reading`: the line "Instantaneous power reading: N Watts".
pub(crate) fn parse_dcmi(text: &str) -> Result<f64, Reason> {
    let value = |label: &str| {
        text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.trim().eq_ignore_ascii_case(label).then(|| value.trim())
        })
    };
    if let Some(state) = value("Power reading state is").filter(|state| *state != "activated") {
        return Err(format!("power reading is {}", clipped(state)));
    }
    let shown = value("Instantaneous power reading").ok_or_else(|| match text.trim().is_empty() {
        true => "no answer".to_string(),
        false => format!("no power reading in '{}'", clipped(text.trim())),
    })?;
    // Where a board speaks DCMI and measures nothing, it says 0.
    let watts = shown.split_ascii_whitespace().next().and_then(|word| word.parse::<u32>().ok());
    watts.filter(|&watts| watts > 0).map(f64::from).ok_or_else(|| format!("it says '{}'", clipped(shown)))
}

/// A row of `ipmitool sdr list full` that is in watts and in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sensor {
    pub name: String,
    pub watts: f64,
}

/// Rows "NAME | 156 Watts | ok"; rows of other units or without a reading are left out.
pub(crate) fn parse_sensors(text: &str) -> Vec<Sensor> {
    let row = |line: &str| {
        let mut cells = line.split('|').map(str::trim);
        let (name, reading, status) = (cells.next()?, cells.next()?, cells.next()?);
        let watts = reading.strip_suffix("Watts")?.trim().parse::<f64>().ok()?;
        let usable = status == "ok" && !name.is_empty() && watts.is_finite() && watts >= 0.0;
        usable.then(|| Sensor { name: name.into(), watts })
    };
    text.lines().filter_map(row).collect()
}

/// The sensors that are the server's power: the one for the whole, else the supplies'
/// inputs. What boards call them differs; a name that isn't known is not guessed at.
pub(crate) fn choose_sensors(sensors: &[Sensor]) -> Result<Vec<String>, Reason> {
    const WHOLE: [&str; 10] = [
        "pwrconsumption",
        "powerconsumption",
        "systempower",
        "syspower",
        "totalpower",
        "systotalpower",
        "powermeter",
        "serverpower",
        "inputpower",
        "pwconsumption",
    ];
    let plain = |name: &str| -> String {
        name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
    };
    if let Some(whole) = sensors.iter().find(|s| s.watts > 0.0 && WHOLE.contains(&plain(&s.name).as_str())) {
        return Ok(vec![whole.name.clone()]);
    }
    let is_input = |name: &str| {
        let name = plain(name);
        let supply = name.strip_prefix("psu").or_else(|| name.strip_prefix("ps"));
        let rest = supply.map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
        matches!(rest, Some("inputpower" | "powerin" | "pin" | "pwrin" | "powerinput"))
    };
    let inputs: Vec<String> =
        sensors.iter().filter(|s| is_input(&s.name)).map(|s| s.name.clone()).take(SUPPLIES_MAX).collect();
    if inputs.is_empty() {
        let seen: Vec<&str> = sensors.iter().map(|s| s.name.as_str()).take(8).collect();
        return Err(match seen.is_empty() {
            true => "none is in watts".into(),
            false => format!("none is known to be the server's power among: {}", seen.join(", ")),
        });
    }
    Ok(inputs)
}

/// `ipmitool sensor reading NAME …`: a row "NAME | 154" for each; the sum of them all.
pub(crate) fn parse_readings(text: &str, names: &[String]) -> Result<f64, Reason> {
    let mut sum = 0.0;
    for name in names {
        let reading = text.lines().find_map(|line| {
            let (label, value) = line.split_once('|')?;
            (label.trim() == name).then(|| value.trim())
        });
        let reading = reading.ok_or_else(|| format!("no reading of {name}"))?;
        let watts = reading.parse::<f64>().ok().filter(|watts| watts.is_finite() && *watts >= 0.0);
        sum += watts.ok_or_else(|| format!("{name} reads '{}'", clipped(reading)))?;
    }
    match sum > 0.0 {
        true => Ok(sum),
        false => Err("it reads 0 W".into()),
    }
}

enum Failure {
    /// The program isn't there, or hangs: asking it otherwise won't help.
    Program(Reason),
    /// It ran and had no power to tell.
    Answer(Reason),
}

impl Failure {
    fn words(self) -> Reason {
        let (Failure::Program(reason) | Failure::Answer(reason)) = self;
        reason
    }
}

/// Runs the program and gives its output, which is bounded in size and time.
fn capture(program: &OsString, words: &[&str], limit: Duration) -> Result<String, Failure> {
    let shown = program.to_string_lossy().into_owned();
    let mut command = Command::new(program);
    command.args(words).env("LC_ALL", "C").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| {
        Failure::Program(match e.kind() {
            std::io::ErrorKind::NotFound => format!("{shown} isn't installed: sudo apt install ipmitool"),
            _ => format!("{shown}: {e}"),
        })
    })?;
    let drained = drain(&mut child, Instant::now() + limit);
    if drained.is_err() {
        end(&child);
    }
    let status = child.wait();
    let [out, err] = drained.map_err(|reason| Failure::Program(format!("{shown} {reason}")))?;
    match status {
        Ok(status) if status.success() => Ok(String::from_utf8_lossy(&out).into_owned()),
        Ok(status) => {
            let words = String::from_utf8_lossy(&err);
            let why = words.lines().map(str::trim).find(|line| !line.is_empty()).map(clipped);
            Err(Failure::Answer(why.unwrap_or_else(|| format!("{shown}: {status}"))))
        }
        Err(e) => Err(Failure::Program(format!("{shown}: {e}"))),
    }
}

/// Reads both pipes to their ends.
fn drain(child: &mut Child, until: Instant) -> Result<[Vec<u8>; 2], Reason> {
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    let mut kept = [Vec::new(), Vec::new()];
    while out.is_some() || err.is_some() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err("took too long and was stopped".into());
        }
        wait_readable([out.as_ref().map(|pipe| pipe as _), err.as_ref().map(|pipe| pipe as _)], left)?;
        take(&mut out, &mut kept[0])?;
        take(&mut err, &mut kept[1])?;
    }
    // Both pipes closed and still running: the time limit holds for that too.
    while child.try_wait().map_err(|e| e.to_string())?.is_none() {
        if Instant::now() >= until {
            return Err("took too long and was stopped".into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(kept)
}

fn wait_readable(pipes: [Option<&dyn std::os::fd::AsFd>; 2], limit: Duration) -> Result<(), Reason> {
    let mut fds: Vec<PollFd> =
        pipes.iter().flatten().map(|pipe| PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)).collect();
    let limit = rustix::event::Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
    match rustix::event::poll(&mut fds, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(format!("poll: {e}")),
    }
}

/// Takes what a pipe holds, without waiting; None in its place at its end.
fn take<P: Read + std::os::fd::AsFd>(pipe: &mut Option<P>, kept: &mut Vec<u8>) -> Result<(), Reason> {
    let Some(open) = pipe else { return Ok(()) };
    let mut fds = [PollFd::new(open, PollFlags::IN)];
    let ready = rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }));
    if matches!(ready, Ok(0) | Err(_)) {
        return Ok(());
    }
    let mut buffer = [0u8; 8192];
    match open.read(&mut buffer) {
        Ok(0) => *pipe = None,
        Ok(length) if kept.len() + length > OUTPUT_BYTES_MAX => {
            return Err(format!("wrote more than {OUTPUT_BYTES_MAX} bytes"));
        }
        Ok(length) => kept.extend_from_slice(&buffer[..length]),
        Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
        Err(e) => return Err(e.to_string()),
    }
    Ok(())
}

/// Ends the program with everything that it started: it leads a process group of its own.
fn end(child: &Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
}

fn clipped(text: &str) -> String {
    text.chars().take(120).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn dcmi_readings_of_several_boards() {
        let common = "\n    Instantaneous power reading:                   220 Watts\n    \
            Minimum during sampling period:                 35 Watts\n    \
            Maximum during sampling period:                560 Watts\n    \
            Average power reading over sample period:      219 Watts\n    \
            IPMI timestamp:                           Thu Mar 11 14:23:11 2021\n    \
            Sampling period:                          00000001 Seconds.\n    \
            Power reading state is:                   activated\n\n\n";
        assert_eq!(parse_dcmi(common), Ok(220.0));
        // Older ipmitool: other time format, tabs, carriage returns.
        let older = "\tInstantaneous power reading:\t1034 Watts\r\n\tPower reading state is:\tactivated\r\n";
        assert_eq!(parse_dcmi(older), Ok(1034.0));
        let off = common.replace("activated", "deactivated");
        assert_eq!(parse_dcmi(&off), Err("power reading is deactivated".into()));
        let zero = common.replace("220 Watts", "0 Watts");
        assert_eq!(parse_dcmi(&zero), Err("it says '0 Watts'".into()));
        assert_eq!(parse_dcmi(""), Err("no answer".into()));
        let none = "    DCMI request failed because: Invalid command (c1)\n";
        assert!(parse_dcmi(none).unwrap_err().contains("Invalid command"));
    }

    #[test]
    fn sensors_of_several_boards() {
        let dell = "Fan1 RPM         | 8400 RPM          | ok\nInlet Temp       | 22 degrees C      | ok\n\
            Current 1        | 0.60 Amps         | ok\nPwr Consumption  | 154 Watts         | ok\n\
            Power Optimized  | 0x80              | ok\n";
        assert_eq!(choose_sensors(&parse_sensors(dell)), Ok(names(&["Pwr Consumption"])));
        let supplies =
            "PS1 Input Power  | 212 Watts         | ok\nPS2 Input Power  | 0 Watts           | ok\n\
            PS3 Input Power  | no reading        | ns\nCPU Power        | 90 Watts          | ok\n";
        let chosen = choose_sensors(&parse_sensors(supplies)).unwrap();
        assert_eq!(chosen, names(&["PS1 Input Power", "PS2 Input Power"]));
        let psu = "PSU1_PIN | 300 Watts | ok\nPSU2_PIN | 310 Watts | ok\nPSU1_POUT | 280 Watts | ok\n";
        assert_eq!(choose_sensors(&parse_sensors(psu)), Ok(names(&["PSU1_PIN", "PSU2_PIN"])));
        let hpe = "Power Meter      | 180 Watts         | ok\nPS 1 Output      | 90 Watts          | ok\n";
        assert_eq!(choose_sensors(&parse_sensors(hpe)), Ok(names(&["Power Meter"])));
        let cpu_only = "CPU Power | 90 Watts | ok\n";
        assert!(choose_sensors(&parse_sensors(cpu_only)).unwrap_err().contains("CPU Power"));
        assert!(choose_sensors(&[]).unwrap_err().contains("none is in watts"));
    }

    #[test]
    fn sensor_readings_are_added() {
        let two = names(&["PS1 Input Power", "PS2 Input Power"]);
        let text = "PS1 Input Power  | 212\nPS2 Input Power  | 198.5\n";
        assert_eq!(parse_readings(text, &two), Ok(410.5));
        assert!(parse_readings("PS1 Input Power | 212\n", &two).unwrap_err().contains("PS2"));
        assert!(parse_readings("PS1 Input Power | na\nPS2 Input Power | 1\n", &two)
            .unwrap_err()
            .contains("'na'"));
        assert!(parse_readings("PS1 Input Power | 0\nPS2 Input Power | 0\n", &two)
            .unwrap_err()
            .contains("0 W"));
    }

    proptest! {
        #[test]
        fn any_output_is_watts_or_a_reason(text in "(\\PC{0,40}\n){0,4}|([A-Za-z ]{0,30}[:|][ 0-9a-zW|.-]{0,20}\n){0,5}") {
            if let Ok(watts) = parse_dcmi(&text) { prop_assert!(watts > 0.0 && watts.is_finite()); }
            let sensors = parse_sensors(&text);
            if let Ok(chosen) = choose_sensors(&sensors) { prop_assert!(!chosen.is_empty()); }
            if let Ok(watts) = parse_readings(&text, &names(&["a"])) { prop_assert!(watts > 0.0); }
        }

        #[test]
        fn a_reading_is_found_wherever_it_stands(watts in 1u32..100_000, before in "(x{0,9}: 5 Watts\n){0,3}") {
            let text = format!("{before}  Instantaneous power reading:   {watts} Watts\nrest");
            prop_assert_eq!(parse_dcmi(&text), Ok(f64::from(watts)));
        }
    }
}
