// Tells whether this process multiplies matrices of bytes in tile registers (Intel AMX). Internal
// to kernels/.
//
// Thread-safe.
#pragma once

namespace prefixd::kernels {

// Returns whether CPU and system have tile registers. The first call asks the system's permission.
bool HaveMatrixTiles();

// For tests: false makes HaveMatrixTiles() false until true is set again. Results are the same
// bits either way.
void AllowMatrixTiles(bool allowed);

}  // namespace prefixd::kernels
