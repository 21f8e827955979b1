#pragma once

#include "absl/status/status.h"
#include "worker/model/lora.h"

namespace sparsebalance::model {

// Shape of a decoder-only transformer of the Qwen2 family.
struct ModelConfig {
  int vocab_size = 256;
  int hidden_size = 128;
  int num_layers = 4;
  int num_heads = 4;
  int num_kv_heads = 4;
  int head_dim = 0;  // even; 0: hidden_size / num_heads
  int intermediate_size = 352;
  float rope_theta = 10000.0F;
  float rms_norm_eps = 1e-6F;
  float initializer_range = 0.02F;      // standard deviation of matrices at initialization
  bool tie_embeddings = true;           // the output projection is the token embedding
  int max_position_embeddings = 32768;  // stated in exported models; nothing is computed from it
  int block_tokens = 64;                // of the block-sparse attention
  // Coverage is measured on the last token of each sequence and every so many before it.
  int coverage_sample_stride = 8;
  // Forward keeps each layer's input and its selection of blocks; backward computes the rest again.
  bool activation_checkpointing = false;
  // Rate of dropout in training: on the embedding, and on what attention and MLP add to the
  // residual stream. Attention weights are never dropped.
  float dropout = 0;
  LoraConfig lora;

  // Whether training drops anything.
  bool Drops() const { return dropout > 0 || (lora.enabled() && lora.dropout > 0); }
  int HeadDim() const { return head_dim == 0 ? hidden_size / num_heads : head_dim; }

  // INVALID_ARGUMENT that names the first field with a bad value.
  absl::Status Validate() const;
};

}  // namespace sparsebalance::model
