package kernels

import (
	"math"
	"slices"
)

//go:generate go run -C _generate ./topk -out ../topk_amd64.s -stubs ../topk_amd64.go -pkg kernels

// TakeTopK moves the k entries of largest |x| out of x:
//
//	idx[:k] = their indices, ascending; val[:k] = x[idx]; x[idx] = 0; n[0] = k
//
// Equal magnitudes go to the lower index; a NaN is larger than anything. k <= x.Len(), idx and val hold at least k, and work
// at least TopKWork(x.Len(), k) elements. The selection is exact.
func TakeTopK(s Stream, idx Buf[uint32], val Buf[float32], n Buf[uint32], x Buf[float32], k int, work Buf[uint32]) {
	atLeast("TakeTopK: x", x.n, k)
	atLeast("TakeTopK: idx", idx.n, k)
	atLeast("TakeTopK: val", val.n, k)
	atLeast("TakeTopK: n", n.n, 1)
	atLeast("TakeTopK: work", work.n, TopKWork(x.n, k))
	s.Launch(Kernel{Op: &takeTopKOp, N: x.n, Args: [maxArgs]Arg{idx.arg(), val.arg(), n.arg(), x.arg(), u64(uint64(k)), work.arg()}})
}

// TopKWork is how many elements of scratch TakeTopK needs for k of n.
func TopKWork(n, k int) int {
	if k == 0 {
		return 0
	}
	return max(bins, sampleSize(n, k)) + 2*candidates(n, k) + band(n, k)
}

const (
	magMask = 0x7fffffff
	bins    = 2048
)

// sparse tells whether so few are taken that listing candidates beats reading x again. The list needs memory for a few k.
func sparse(n, k int) bool { return n >= 1<<12 && k <= n/32 }

// candidates is the room for entries that may be among the k largest.
func candidates(n, k int) int {
	if !sparse(n, k) {
		return 0
	}
	return min(n, 3*k+1024)
}

// band is the room for magnitudes near the k-th, where so many are taken that no list of them is made.
func band(n, k int) int {
	if n < 1<<14 || sparse(n, k) {
		return 0
	}
	return n / 8
}

func sampleSize(n, k int) int {
	if sparse(n, k) {
		return min(n/64, 1<<16)
	}
	return min(n/16, 1<<16)
}

var takeTopKOp = Op{"take_topk", func(kn *Kernel) {
	idx, val, n, x := slice[uint32](kn.Args[0]), slice[float32](kn.Args[1]), slice[uint32](kn.Args[2]), slice[float32](kn.Args[3])
	k, work := int(kn.Args[4].Bits), slice[uint32](kn.Args[5])
	n[0] = uint32(k)
	if k == 0 {
		return
	}
	room := candidates(len(x), k)
	list, mags, work := work[:room], work[room:2*room], work[2*room:]
	found := 0
	if near := band(len(x), k); near > 0 {
		if kth, ties, ok := findNear(x, k, work[near:near+sampleSize(len(x), k)], work[:near]); ok {
			take(idx[:k], val[:k], x, kth, ties)
			return
		}
	}
	if room > 0 {
		// A threshold guessed from a sample lists the candidates in one pass. When the guess is wrong, fall back.
		found = listAbove(list, x, guess(x, k, work[:sampleSize(len(x), k)]))
	}
	if found < k || found > room {
		low, above, bin := histogramBound(x, k, work[:bins], room)
		if above+bin <= room {
			found = listAbove(list, x, low)
		} else {
			take(idx[:k], val[:k], x, low, k-above) // here low is exactly the k-th magnitude
			return
		}
	}
	list, mags = list[:found], mags[:found]
	for j, i := range list {
		mags[j] = math.Float32bits(x[i]) & magMask
	}
	kth, ties := nth(mags, k)
	j := 0
	for _, i := range list {
		m := math.Float32bits(x[i]) & magMask
		if m < kth || m == kth && ties == 0 {
			continue
		}
		if m == kth {
			ties--
		}
		idx[j], val[j], x[i] = i, x[i], 0
		j++
	}
}}

// draw takes a strided sample of magnitudes, and returns how many of it are to be expected among the k largest of x, with the standard deviation.
func draw(x []float32, k int, sample []uint32) (want, sigma float64) {
	// The stride is odd and the start spread by a hash, so that rows of a power-of-two width are not sampled in one column.
	stride := len(x) / len(sample)
	h := uint32(0x9e3779b9)
	for j := range sample {
		h = h*1664525 + 1013904223
		i := j*stride + int(uint64(h)*uint64(stride)>>32)
		sample[j] = math.Float32bits(x[i]) & magMask
	}
	share := float64(k) / float64(len(x))
	want = float64(len(sample)) * share
	return want, math.Sqrt(want * (1 - share))
}

// guess estimates from a sample a magnitude that somewhat more than k entries of x reach.
func guess(x []float32, k int, sample []uint32) uint32 {
	want, sigma := draw(x, k, sample)
	return rank(sample, int(want+3*sigma)+4)
}

// rank is the r-th largest of a sample, 0 where it has not as many.
func rank(sample []uint32, r int) uint32 {
	if r >= len(sample) {
		return 0
	}
	v, _ := nth(sample, max(r, 1))
	return v
}

// findNear finds the k-th magnitude of x, and how many entries equal to it are among the k largest, in one pass that lists the magnitudes between two that
// are guessed from a sample. It is not ok when the k-th is not between them, or they do not fit in list.
func findNear(x []float32, k int, sample, list []uint32) (kth uint32, ties int, ok bool) {
	want, sigma := draw(x, k, sample)
	low, high := rank(sample, int(want+4*sigma)+4), rank(sample, int(want-4*sigma)-4)
	above, c := 0, 0
	for _, v := range x {
		if c == len(list) {
			return 0, 0, false
		}
		// Written always and kept where it is between: a branch that is hard to guess costs more than a store.
		m := math.Float32bits(v) & magMask
		larger := int((high - m) >> 31)
		list[c] = m
		c += 1 - int((m-low)>>31) - larger
		above += larger
	}
	if above >= k || above+c < k {
		return 0, 0, false
	}
	kth, ties = nth(list[:c], k-above)
	return kth, ties, true
}

// listAbove writes the ascending indices of the entries whose magnitude is at least low, and returns how many there are:
// len(list)+1 when they do not fit.
func listAbove(list []uint32, x []float32, low uint32) int {
	if low == 0 {
		return len(list) + 1
	}
	c := 0
	for i := 0; i < len(x); {
		end := len(x)
		if avx2 && i+32 <= len(x) {
			n, _ := skipAVX2(x[i:min(len(x), i+piece)], low)
			i += n
			end = min(i+8, len(x))
		}
		for ; i < end; i++ {
			if math.Float32bits(x[i])&magMask >= low {
				if c == len(list) {
					return c + 1
				}
				list[c] = uint32(i)
				c++
			}
		}
	}
	return c
}

// histogramBound narrows the k-th magnitude of x digit by digit (11, 11 and 9 bits) until the entries at or above low fit in room.
// above entries are larger than the bin that starts at low, bin entries are in it. Once all digits are known low is the k-th
// magnitude itself.
func histogramBound(x []float32, k int, h []uint32, room int) (low uint32, above, bin int) {
	mask := uint32(0)
	for _, d := range [...]struct{ shift, width int }{{20, 11}, {9, 11}, {0, 9}} {
		h := h[:1<<d.width]
		clear(h)
		for _, v := range x {
			m := math.Float32bits(v) & magMask
			if m&mask == low {
				h[m>>d.shift&uint32(len(h)-1)]++
			}
		}
		b := len(h) - 1
		for ; above+int(h[b]) < k; b-- {
			above += int(h[b])
		}
		bin = int(h[b])
		low |= uint32(b) << d.shift
		if above+bin <= room {
			break
		}
		mask |= uint32(len(h)-1) << d.shift
	}
	return low, above, bin
}

// take moves out the entries above kth and the first ties of those equal to it; together they are len(idx).
func take(idx []uint32, val []float32, x []float32, kth uint32, ties int) {
	j := 0
	for i, v := range x {
		if j == len(idx) {
			return
		}
		b := math.Float32bits(v)
		taken := (kth - b&magMask) >> 31
		if b&magMask == kth && ties > 0 {
			ties--
			taken = 1
		}
		idx[j], val[j], x[i] = uint32(i), v, math.Float32frombits(b&(taken-1)) // without a branch that is hard to guess
		j += int(taken)
	}
}

// nth returns the k-th largest of m (k >= 1), which it reorders, and how many entries equal to it are among the k largest.
func nth(m []uint32, k int) (kth uint32, ties int) {
	a, depth := m, 0
	for len(a) > 32 {
		if depth++; depth > 64 {
			break // an unlucky order: sort what is left
		}
		p := pivot(a)
		larger := part(a, uint64(p)+1)
		if k <= larger {
			a = a[:larger]
			continue
		}
		k, a = k-larger, a[larger:]
		equal := part(a, uint64(p))
		if k <= equal {
			return p, k
		}
		k, a = k-equal, a[equal:]
	}
	slices.Sort(a)
	kth = a[len(a)-k]
	for i := len(a) - 1; i >= len(a)-k; i-- {
		if a[i] == kth {
			ties++
		}
	}
	return kth, ties
}

// part moves the entries of at least low to the front of a, and returns how many there are. It does so without a branch that is hard to guess.
func part(a []uint32, low uint64) int {
	n := 0
	for i, v := range a {
		a[i] = a[n]
		a[n] = v
		n += int(^(uint64(v) - low) >> 63)
	}
	return n
}

func pivot(a []uint32) uint32 {
	x, y, z := a[len(a)/4], a[len(a)/2], a[len(a)-len(a)/4-1]
	return max(min(x, y), min(max(x, y), z))
}
