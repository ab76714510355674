//! Models on MLX.
