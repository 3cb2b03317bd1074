// bindings.h: the parts of the module, each of which adds its own classes and functions.
#pragma once

#include <nanobind/nanobind.h>

namespace thimble {

void bind_artifact(nanobind::module_& module);
void bind_quantizer(nanobind::module_& module);
void bind_trellis(nanobind::module_& module);

}  // namespace thimble
