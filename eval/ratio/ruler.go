package ratio

import (
	"context"
	"sync"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/kernels"
)

// indices are those of one sparse payload: k of n, and the bits that their code takes.
type indices struct{ n, k, bits int }

// ruler measures the indices of the sparse payloads that compressors offer to all.
type ruler struct {
	mu    sync.Mutex // payloads are offered from two goroutines of the engine
	noted []indices
}

// around is m with its compressors under the ruler.
func (r *ruler) around(m compress.Method) compress.Method {
	m.New = r.wrap(m.New)
	if m.Small != nil {
		m.Small = r.wrap(m.Small)
	}
	return m
}

func (r *ruler) wrap(mk func(compress.Set) (compress.Compressor, error)) func(compress.Set) (compress.Compressor, error) {
	return func(t compress.Set) (compress.Compressor, error) {
		c, err := mk(t)
		return &measured{Compressor: c, ruler: r}, err
	}
}

// measured is a compressor whose payloads are measured.
type measured struct {
	compress.Compressor
	ruler *ruler
	over  bool             // what is on its way is all that a step sends
	sent  compress.Payload // what is on its way
}

func (c *measured) Start(ctx context.Context, s kernels.Stream, v kernels.Buf[float32]) (compress.Payload, error) {
	c.over = false
	p, err := c.Compressor.Start(ctx, s, v)
	if err != nil {
		return nil, err
	}
	c.sent = p
	return p, c.note(ctx, s, p)
}

func (c *measured) Next(ctx context.Context, s kernels.Stream, got compress.Received, out kernels.Buf[float32]) (compress.Payload, error) {
	if c.over {
		return nil, nil
	}
	tellApart(c.sent, got)
	p, err := c.Compressor.Next(ctx, s, got, out)
	if err != nil {
		return nil, err
	}
	c.sent = p
	return p, c.note(ctx, s, p)
}

// tellApart lets an owner receive from every rank another of the shards that were sent, where they are of one size. A mirror returns the same one
// from all, whose sum has the entropy of one and not of a sum.
func tellApart(p compress.Payload, got compress.Received) {
	switch p := p.(type) {
	case *compress.Many:
		for i, q := range p.Of {
			tellApart(q, got.Many[i])
		}
	case *compress.Split:
		for r, q := range p.To {
			if q, ok := q.(*compress.Packed); !ok || q.B.Len() != got.Packed[r].Len() {
				return
			}
		}
		for r, q := range p.To {
			got.Packed[r] = q.(*compress.Packed).B
		}
	}
}

func (c *measured) note(ctx context.Context, s kernels.Stream, p compress.Payload) error {
	switch p := p.(type) {
	case *compress.Many:
		for _, q := range p.Of {
			if err := c.note(ctx, s, q); err != nil {
				return err
			}
		}
	case *compress.Packed:
		// Owners hand out shards of different sizes, and a mirror has only this rank's: it counts that one, and nobody decodes the others.
		for r := range p.Sizes {
			p.Sizes[r], c.over = p.B.Len(), true
		}
	case *compress.Sparse:
		k := make([]uint32, 1)
		if err := kernels.Read(ctx, s, k, p.Len); err != nil {
			return err
		}
		idx := make([]uint32, k[0])
		if err := kernels.Read(ctx, s, idx, p.Idx.Slice(0, len(idx))); err != nil {
			return err
		}
		r := c.ruler
		r.mu.Lock()
		r.noted = append(r.noted, indices{p.N, len(idx), compress.IndexBits(p.N, idx)})
		r.mu.Unlock()
	}
	return nil
}
