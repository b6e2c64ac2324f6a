//! A matrix as plans and messages see it.

use super::Matrix;
use crate::{DType, MatrixInfo, Shape};

impl MatrixInfo for Matrix {
    fn name(&self) -> &str {
        self.name()
    }
    fn shape(&self) -> Shape {
        self.shape()
    }
    fn dtype(&self) -> DType {
        self.dtype()
    }
    fn is_remote(&self) -> bool {
        self.is_remote()
    }
    fn is_generated(&self) -> bool {
        self.generator().is_some()
    }
    fn turned(self) -> Self {
        self.transposed()
    }
}
