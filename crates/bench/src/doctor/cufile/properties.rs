//! The settings of cuFile that users ask for: as cufile.json has them, and as cuFile itself says once its driver is open.

use super::Config;
use forebay_io::{cufile, Check, CheckArea, CheckState, CudaDevice};
use forebay_model::record::CufileProperties;
use forebay_model::Error;
use serde::Serialize;

const ALLOW_COMPAT: &str = "allow_compat_mode";
/// Below `properties` in cufile.json.
const SHOWN: [&str; 5] = [
    ALLOW_COMPAT,
    "use_poll_mode",
    "max_direct_io_size_kb",
    "max_device_cache_size_kb",
    "max_device_pinned_mem_size_kb",
];

/// Answers of cuFile.
#[derive(Clone, Debug, Serialize)]
pub struct Answers {
    /// Null where it can't be asked (before 1.14).
    pub allow_compat_mode: Option<bool>,
    #[serde(flatten)]
    pub properties: CufileProperties,
}

/// Opens cuFile's driver, which takes a CUDA context and up to seconds; libcufile keeps threads and may write a log. Whoever
/// must not be disturbed by that asks in a process of its own.
///
/// # Errors
/// `Machine`: no GPU, no libcufile, or one that doesn't start.
pub fn ask_cufile() -> Result<Answers, Error> {
    let refused = |why: String| Error::machine("cuFile's properties", why, "forebay doctor; cuFile's log");
    let device = CudaDevice::open(0)?;
    device.enter().map_err(|e| refused(e.to_string()))?;
    let driver = cufile().map_err(refused)?.open(true).map_err(|e| refused(e.to_string()))?;
    let properties = driver.properties().map_err(|e| refused(e.to_string()))?;
    Ok(Answers { allow_compat_mode: driver.allows_compat(), properties })
}

/// One line each, as configured.
pub(crate) fn checks(config: &Config) -> impl Iterator<Item = Check> + '_ {
    SHOWN.iter().map(|name| {
        Check::new(
            CheckArea::Gds,
            format!("cufile.{name}"),
            *name,
            CheckState::Works,
            configured(config, name),
        )
    })
}

fn configured(config: &Config, name: &str) -> String {
    let set = config.settings.get(&format!("properties.{name}"));
    match set {
        // The environment comes before the file.
        _ if name == ALLOW_COMPAT
            && set.is_none_or(|set| set.as_bool() != Some(config.allow_compat_mode)) =>
        {
            format!("{}, by default or by the environment", config.allow_compat_mode)
        }
        Some(value) => format!("{value}, in cufile.json"),
        None => "not set in cufile.json: cuFile's default".into(),
    }
}
