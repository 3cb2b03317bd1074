// mmintrin.h: MMX, which WebAssembly has not and nothing of ours uses. Eigen includes it before SSE's headers, which
// Emscripten has.
#pragma once

// Eigen takes Clang for a GCC before 6.3, for whose sake it writes minima and maxima in x86 assembly.
#ifdef EIGEN_COMP_GNUC
#undef EIGEN_COMP_GNUC
#define EIGEN_COMP_GNUC 63
#endif
