package link

import (
	"math/bits"
	"sync"
)

// Pool keeps buffers for reuse. The zero Pool is empty. Any number of goroutines may use it.
type Pool struct {
	mu   sync.Mutex
	free [32][][]byte // free[c] holds buffers of capacity 1<<c
}

// minClass is the logarithm of the smallest buffer worth keeping.
const minClass = 6

// Get returns a buffer of n bytes, at most MaxMessage, aligned to 8. It is never nil.
func (p *Pool) Get(n int) []byte {
	if n == 0 {
		return []byte{}
	}
	c := max(minClass, bits.Len(uint(n-1)))
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.free[c]; len(f) > 0 {
		b := f[len(f)-1]
		f[len(f)-1] = nil
		p.free[c] = f[:len(f)-1]
		return b[:n]
	}
	return make([]byte, n, 1<<c)
}

// Release takes back what Get returned. Other slices are left to the garbage collector.
func (p *Pool) Release(b []byte) {
	c := bits.Len(uint(cap(b))) - 1
	if c < minClass || c >= len(p.free) || cap(b) != 1<<c {
		return
	}
	p.mu.Lock()
	p.free[c] = append(p.free[c], b)
	p.mu.Unlock()
}
