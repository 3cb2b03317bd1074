# What the decoder of other programs is made of: sources of packer and runtime that need no library but xxHash's header,
# and no threads. For the CMake project beside this file, and for others that take the decoder in.
# Sets THIMBLE_DECODE_SOURCES (absolute paths), THIMBLE_DECODE_HOT_SOURCES (those of them where the time goes) and
# THIMBLE_ROOT (what #includes begin from).
get_filename_component(THIMBLE_ROOT ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)
set(THIMBLE_DECODE_HOT_SOURCES
    packer/embed/levels.cpp
    packer/rans/lane_rans.cpp)
set(THIMBLE_DECODE_SOURCES
    packer/codecs/decompress.cpp
    packer/container/artifact_reader.cpp
    packer/container/container.cpp
    packer/embed/tensor_reader.cpp
    packer/embed/thimble_decode.cpp
    packer/layout/artifact_header.cpp
    packer/layout/canonical_reader.cpp
    packer/layout/section_layout.cpp
    packer/layout/section_plan.cpp
    packer/rans/scale_tables.cpp
    packer/rans/weight_decoder.cpp
    packer/rans/weight_escapes.cpp
    runtime/base/fill_text.cpp
    runtime/base/format_error.cpp
    runtime/base/hash.cpp
    runtime/tensor/dtype.cpp
    ${THIMBLE_DECODE_HOT_SOURCES})
list(TRANSFORM THIMBLE_DECODE_SOURCES PREPEND ${THIMBLE_ROOT}/)
list(TRANSFORM THIMBLE_DECODE_HOT_SOURCES PREPEND ${THIMBLE_ROOT}/)
