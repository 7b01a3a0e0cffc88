# Ranvier. `make help` lists the targets.
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules
SHELL := /bin/bash
.SUFFIXES:
.DELETE_ON_ERROR:

# ---- choices: make SAN=address|thread|undefined HDF5=0 DNNL=0 FAULTS=1 V=1 -------------------
SAN ?=
V ?=
FAULTS ?=
CC := $(if $(filter default undefined,$(origin CC)),gcc,$(CC))
PKG_CONFIG ?= pkg-config
CFLAGS ?= -O2 -g
CPPFLAGS ?=
LDFLAGS ?=
LDLIBS ?=
PREFIX ?= /usr/local
DESTDIR ?=

has = $(shell $(PKG_CONFIG) --exists $(1) 2>/dev/null && echo 1 || echo 0)
HDF5_PKG := $(firstword $(foreach p,hdf5-serial hdf5,$(if $(filter 1,$(call has,$(p))),$(p))))
HDF5 ?= $(if $(HDF5_PKG),1,0)
DNNL_H := $(shell echo '\#include <dnnl.h>' | $(CC) $(CPPFLAGS) -E - >/dev/null 2>&1 && echo 1 || echo 0)
DNNL ?= $(DNNL_H)

QUIET := $(if $(V),,@)
VARIANT := release$(if $(SAN),-$(SAN))$(if $(filter 0,$(HDF5)),-nohdf5)$(if $(filter 0,$(DNNL)),-nodnnl)$(if $(FAULTS),-faults)
OUT := build/$(VARIANT)

HARD_PKGS := yaml-0.1 jansson zlib
DEFS := -D_GNU_SOURCE $(if $(filter 1,$(HDF5)),-DRV_HDF5) $(if $(filter 1,$(DNNL)),-DRV_DNNL) $(if $(FAULTS),-DRV_FAULTS)
PKG_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(HARD_PKGS) $(if $(filter 1,$(HDF5)),$(HDF5_PKG)) 2>/dev/null)
PKG_LIBS := $(shell $(PKG_CONFIG) --libs $(HARD_PKGS) $(if $(filter 1,$(HDF5)),$(HDF5_PKG)) 2>/dev/null) $(if $(filter 1,$(DNNL)),-ldnnl)
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wundef -Wvla
ARITH := -std=c11 -ffp-contract=off -fno-math-errno -fno-trapping-math
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer $(if $(filter undefined,$(SAN)),-fno-sanitize-recover=all))
ALL_CFLAGS = $(CFLAGS) $(ARITH) $(WARN) $(SANFLAGS) $(DEFS) -I. $(PKG_CFLAGS) $(CPPFLAGS) -MMD -MP -pthread
ALL_LDFLAGS = $(LDFLAGS) $(SANFLAGS) -pthread
ALL_LDLIBS = $(PKG_LIBS) -ldl -lm $(LDLIBS)

# ---- objects: cpu_*.c once per instruction set, with a suffix on every name -------------------
MACHINE := $(shell $(CC) -dumpmachine)
LEVELS := $(if $(findstring x86_64,$(MACHINE)),baseline avx2 avx512,baseline)
LEVEL_avx2 := -march=x86-64-v3
LEVEL_avx512 := -march=x86-64-v4 -mprefer-vector-width=512
LEVEL_baseline :=
CPU_SRC := $(wildcard kernels/cpu_*.c)
FOLDERS ?= kernels snn data pipeline
LIB_SRC := $(filter-out $(CPU_SRC) pipeline/main.c pipeline/cmd_%.c,$(wildcard $(FOLDERS:%=%/*.c)))
CMD_SRC := $(wildcard pipeline/main.c pipeline/cmd_*.c)
LIB_OBJ := $(LIB_SRC:%.c=$(OUT)/%.o) $(foreach l,$(LEVELS),$(CPU_SRC:%.c=$(OUT)/%.$(l).o))
CMD_OBJ := $(CMD_SRC:%.c=$(OUT)/%.o)
LIB := $(OUT)/libranvier.a
TEST_SRC := $(wildcard tests/test_*.c)
TEST_BIN := $(TEST_SRC:tests/%.c=$(OUT)/tests/%)

.PHONY: all help test clean summary
all: summary build/ranvier

summary:
	@echo "ranvier: $(VARIANT)  HDF5=$(HDF5) oneDNN=$(DNNL) levels=$(LEVELS)"

build/ranvier: $(OUT)/ranvier
	$(QUIET)ln -sfn $(VARIANT)/ranvier $@

$(OUT)/ranvier: $(CMD_OBJ) $(LIB)
	$(QUIET)$(CC) $(ALL_LDFLAGS) -o $@ $(CMD_OBJ) $(LIB) $(ALL_LDLIBS)

$(LIB): $(LIB_OBJ)
	$(QUIET)rm -f $@ && ar rcs $@ $^

define level_rule
$(OUT)/kernels/cpu_%.$(1).o: kernels/cpu_%.c
	@mkdir -p $$(@D)
	$$(QUIET)$$(CC) $$(ALL_CFLAGS) -O3 $$(LEVEL_$(1)) -DRV_LEVEL=$(1) -c -o $$@ $$<
endef
$(foreach l,$(LEVELS),$(eval $(call level_rule,$(l))))

$(OUT)/%.o: %.c
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) -c -o $@ $<

$(OUT)/tests/%: tests/%.c $(LIB)
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $< $(LIB) -lcmocka $(ALL_LDLIBS)

test: all $(TEST_BIN)
	$(QUIET)scripts/run_tests $(OUT) $(TEST_BIN)

clean:
	rm -rf build

-include $(shell find $(OUT) -name '*.d' 2>/dev/null)
