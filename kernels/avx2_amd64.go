//go:build !purego

package kernels

import cpuid "golang.org/x/sys/cpu"

// avx2 tells whether the assembly can run here.
var avx2 = cpuid.X86.HasAVX2 && cpuid.X86.HasFMA && cpuid.X86.HasF16C && cpuid.X86.HasPOPCNT
