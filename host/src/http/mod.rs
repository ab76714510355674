//! Routes, wire types and errors.
