#pragma once

namespace sparsebalance::kernels {

// Makes every backend of this build known to CreateBackend. A program's main() calls it first.
void RegisterAllBackends();

}  // namespace sparsebalance::kernels
