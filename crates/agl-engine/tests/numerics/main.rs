//! What the model computes, against recordings of PyTorch and against itself. One binary, so that it links once.

mod forward;
mod support;
