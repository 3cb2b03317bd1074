// gptq.h: the whole library, in the order in which a model passes through it (method `trace`).
//
//   HessianCollector collector;                        observes one forward pass per calibration sequence
//   HessianSet hessians = std::move(collector).finish();
//   auto sensitivities = trace_sensitivities(hessians);
//   Plan plan = make_trace_plan(summaries, sensitivities, options);
//   for each distinct Hessian:
//     HessianFactor factor = factor_hessian(hessian.matrix, kTraceDamping, layer);
//     for each of its layers:
//       model.tensors.push_back(quantize_tensor(layer, weights, plan.at(layer), &factor).tensor);
//   all other tensors: quantize_tensor(name, weights, plan.at(name), nullptr)
//   prune_smallest(model, plan, count);                only when the artifact must become smaller
//
// What the loss feels (fisher.h), which `trace` does not use: a FisherCollector observes a backward pass per sequence.
//
// The method `slope` solves with solve_slope() (slope_solver.h) instead, with steps per row and column, rates
// (rate_model.h) and paths of a trellis (trellis_quantizer.h).
//
// On a CUDA device, collect_hessians_cuda() (cuda_hessians.h) does the first step; solve_gptq_cuda() and, in NVFP4,
// solve_gptq_nvfp4_cuda() (cuda_gptq.h) factor and solve all layers at once.
#pragma once

// clang-format off
#include "gptq/statistics/hessian.h"      // 1. E[x x^T] at every layer's input
#include "gptq/trace/sensitivity.h"       // 2. which layers matter most
#include "gptq/trace/plan.h"              // 3. a precision for every tensor
#include "gptq/factor/hessian_factor.h"   // 4. damping, column order, Cholesky
#include "gptq/trace/gptq_solver.h"       // 5. codes and scales of one matrix
#include "gptq/trace/quantize_tensor.h"   // 6. any tensor by its precision
#include "gptq/trace/prune.h"             // 7. fewer non-zero codes
// clang-format on
