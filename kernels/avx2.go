package kernels

// Every assembly function does the whole groups of entries at the front of its slices and says how many entries those are. The Go loop beside the
// call does the rest, and all of it where avx2 is false. Both give the same bits.

// piece bounds the entries of one call: a goroutine in assembly cannot be stopped, and a garbage collection would wait for it.
const piece = 1 << 16
