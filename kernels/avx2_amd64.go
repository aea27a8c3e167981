//go:build !purego

package kernels

import cpuid "golang.org/x/sys/cpu"

// avx2 tells whether the assembly can run here. Every function of it does the front of its slices and says how many entries that is; the Go
// loop beside each call does the rest, or all of it.
var avx2 = cpuid.X86.HasAVX2 && cpuid.X86.HasFMA && cpuid.X86.HasF16C && cpuid.X86.HasPOPCNT

// piece bounds the entries of one call: a goroutine in assembly cannot be stopped, and a garbage collection would wait for it.
const piece = 1 << 16
