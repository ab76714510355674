//! Which way a model computes.

use mlx_rs::{Device, DeviceType};

/// Which way a model computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// On the CPU, with the kernels of `sluice-kernels`.
    Cpu,
    /// With MLX's own operations alone, on its default device.
    Mlx,
}

impl Backend {
    /// The CPU's when MLX has no GPU.
    pub fn detect() -> Self {
        match Device::try_default().and_then(|device| device.get_type()) {
            Ok(DeviceType::Gpu) => Self::Mlx,
            _ => Self::Cpu,
        }
    }
}
