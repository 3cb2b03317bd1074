# What THIMBLE_FUSED_ATTENTION may be. A fused attention keeps scores and softmax weights in registers, where nothing can
# round them to Q1.15: together with the SF16 modes it would silently compute something else. Reads variables alone, so
# that a test can run it as a script. No source uses such a library yet.

if(THIMBLE_FUSED_ATTENTION AND NOT THIMBLE_FUSED_ATTENTION STREQUAL "cuDNN")
  message(FATAL_ERROR "THIMBLE_FUSED_ATTENTION is '${THIMBLE_FUSED_ATTENTION}', allowed are OFF and cuDNN")
endif()
if(THIMBLE_FUSED_ATTENTION AND THIMBLE_SF16)
  message(FATAL_ERROR "THIMBLE_FUSED_ATTENTION=${THIMBLE_FUSED_ATTENTION} cannot be combined with the SF16 modes: a fused "
    "attention does not round scores and softmax weights to Q1.15. Set THIMBLE_FUSED_ATTENTION=OFF or THIMBLE_SF16=OFF")
endif()
if(THIMBLE_FUSED_ATTENTION)
  find_path(CUDNN_INCLUDE_DIR cudnn.h REQUIRED)
endif()
