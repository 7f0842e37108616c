//! Data sheets, as data. No constant here was fitted to a measurement.

use super::DriveModel;

pub struct Sheet {
    pub name: &'static str,
    class: Class,
    /// MB/s, decimal.
    read_mb_s: f64,
    write_mb_s: Option<f64>,
    rand_read_iops: Option<f64>,
    rand_write_iops: Option<f64>,
    source: &'static str,
}

/// Sheets often give no latency; drives of one kind lie close together. Reads are
/// the sum of NAND read, error correction and controller; writes end in the
/// drive's power-safe buffer.
#[derive(Clone, Copy)]
enum Class {
    NvmeTlc,
    NvmeQlc,
    SataTlc,
    Ideal,
}

impl Class {
    /// Microseconds of a read, of a write, and the reason.
    fn latency_us(self) -> (f64, f64, &'static str) {
        match self {
            Class::NvmeTlc => {
                (75.0, 15.0, "assumed for the class: NVMe TLC, reads of 60-90 us, writes of about 15 us")
            }
            Class::NvmeQlc => {
                (110.0, 30.0, "assumed for the class: NVMe QLC, reads of 90-130 us, writes of about 30 us")
            }
            Class::SataTlc => {
                (110.0, 50.0, "assumed for the class: SATA TLC, reads of 90-130 us, writes of about 50 us")
            }
            Class::Ideal => (10.0, 10.0, "chosen: an ideal drive"),
        }
    }
}

const TABLE_2: &str = "Solidigm GPUDirect Storage white paper, table 2 (drive specifications)";

pub const SHEETS: [Sheet; 8] = [
    Sheet {
        name: "d7-ps1010",
        class: Class::NvmeTlc,
        read_mb_s: 14500.0,
        write_mb_s: Some(9300.0),
        rand_read_iops: Some(2.8e6),
        rand_write_iops: Some(4e5),
        source: TABLE_2,
    },
    Sheet {
        name: "d5-p5336",
        class: Class::NvmeQlc,
        read_mb_s: 7000.0,
        write_mb_s: Some(3000.0),
        rand_read_iops: Some(1.005e6),
        rand_write_iops: Some(24e3),
        source: TABLE_2,
    },
    Sheet {
        name: "d3-s4520",
        class: Class::SataTlc,
        read_mb_s: 550.0,
        write_mb_s: Some(510.0),
        rand_read_iops: Some(86e3),
        rand_write_iops: Some(30e3),
        source: TABLE_2,
    },
    Sheet {
        name: "d7-p5520",
        class: Class::NvmeTlc,
        read_mb_s: 7100.0,
        write_mb_s: Some(4200.0),
        rand_read_iops: None,
        rand_write_iops: None,
        source: "product brief of the series, not checked for this capacity; IOPS not known",
    },
    Sheet {
        name: "micron-9300-pro",
        class: Class::NvmeTlc,
        read_mb_s: 3500.0,
        write_mb_s: Some(3500.0),
        rand_read_iops: Some(850e3),
        rand_write_iops: None,
        source: "figures published for the series (3,500 MB/s, 850,000 IOPS); random writes not known",
    },
    ideal("gen3-ideal", 8.0),
    ideal("gen4-ideal", 16.0),
    ideal("gen5-ideal", 32.0),
];

/// Returns an ideal drive on four PCIe lanes of `gt_s`: 128b/130b coding, 512-byte payloads with 24 bytes of packet
/// overhead each.
const fn ideal(name: &'static str, gt_s: f64) -> Sheet {
    let mb_s = gt_s * 1e3 / 8.0 * 4.0 * (128.0 / 130.0) * (512.0 / 536.0);
    Sheet {
        name,
        class: Class::Ideal,
        read_mb_s: mb_s,
        write_mb_s: Some(mb_s),
        rand_read_iops: Some(mb_s * 1e6 / 512.0),
        rand_write_iops: Some(mb_s * 1e6 / 512.0),
        source: "four PCIe lanes: line rate less coding and packet overhead; not a product",
    }
}

impl Sheet {
    pub fn model(&self) -> DriveModel {
        let (read_us, write_us, latency_source) = self.class.latency_us();
        DriveModel {
            name: self.name.to_string(),
            drives: 1,
            read_bandwidth_bytes_s: self.read_mb_s * 1e6,
            write_bandwidth_bytes_s: self.write_mb_s.map(|mb| mb * 1e6),
            rand_read_iops: self.rand_read_iops,
            rand_write_iops: self.rand_write_iops,
            read_latency_s: read_us / 1e6,
            write_latency_s: write_us / 1e6,
            channels: None,
            command_bytes: 128 << 10,
            command_overhead_s: 0.0,
            source: self.source.to_string(),
            latency_source: latency_source.to_string(),
        }
    }
}
