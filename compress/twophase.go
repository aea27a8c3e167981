package compress

import (
	"context"
	"errors"
	"fmt"

	"github.com/gradpress/gradpress/kernels"
)

// TwoPhase makes the traffic of a method that offers one full Packed a step independent of the number of ranks (Seide et al. 2014,
// section 3.3). Each tensor is cut into one shard a rank, by rows where it has rows. Every rank compresses every shard and sends it to
// its owner; the owner averages what came, adds what it still owes on its shard, compresses again, and hands that out.
//
// State is mk's, and "owner", what this rank owes on its own shard, which is restored on the same rank of as many only.
func TwoPhase(mk func(Set) (Compressor, error)) func(Set) (Compressor, error) {
	return PerPart(func(p Part, t Set) (Compressor, error) {
		c := &twoPhase{rank: t.Rank, at: shards(p, t.Size)}
		c.split.To = make([]Payload, t.Size)
		c.packed.Sizes = make([]int, t.Size)
		for r := range t.Size {
			n := c.at[r+1] - c.at[r]
			shard := t
			shard.Parts = []Part{{Name: fmt.Sprintf("%s/shard%d", p.Name, r), ID: p.ID + uint32(r), Shape: []int{n}}}
			if len(p.Shape) > 1 {
				from, to := share(p, t.Size, r)
				shard.Parts[0].Shape = append([]int{to - from}, p.Shape[1:]...)
			}
			first, err := mk(shard)
			if err != nil {
				return nil, err
			}
			// What an owner hands out stands for all ranks, so it is averaged over one.
			shard.Rank, shard.Size = 0, 1
			second, err := mk(shard)
			if err != nil {
				return nil, err
			}
			c.first, c.second = append(c.first, first), append(c.second, second)
		}
		mine := c.at[t.Rank+1] - c.at[t.Rank]
		var errs [2]error
		c.mean, errs[0] = kernels.NewBuf[float32](t.Dev, mine)
		c.owner, errs[1] = kernels.NewBuf[float32](t.Dev, mine)
		return c, errors.Join(errs[:]...)
	})
}

// share is the rows [from, to) of rank r: of the first dimension.
func share(p Part, size, r int) (from, to int) {
	n := 1
	if len(p.Shape) > 0 {
		n = p.Shape[0]
	}
	return r * n / size, (r + 1) * n / size
}

// shards are the bounds of every rank's share, in elements.
func shards(p Part, size int) []int {
	row := 1
	for i, d := range p.Shape {
		if i > 0 {
			row *= d
		}
	}
	at := make([]int, size+1)
	for r := range size {
		_, to := share(p, size, r)
		at[r+1] = to * row
	}
	return at
}

type twoPhase struct {
	rank          int
	at            []int
	first, second []Compressor // of each shard
	split         Split
	packed        Packed
	mean, owner   kernels.Buf[float32] // of this rank's shard
	scattered     bool
}

func (c *twoPhase) shard(v kernels.Buf[float32], r int) kernels.Buf[float32] {
	return v.Slice(c.at[r], c.at[r+1])
}

func (c *twoPhase) Start(ctx context.Context, s kernels.Stream, v kernels.Buf[float32]) (Payload, error) {
	c.scattered = false
	for r, f := range c.first {
		p, err := c.one(f.Start(ctx, s, c.shard(v, r)))
		if err != nil {
			return nil, err
		}
		c.split.To[r] = p
		c.packed.Sizes[r] = p.B.Len()
	}
	return &c.split, nil
}

// one is the single full Packed that this works for.
func (c *twoPhase) one(p Payload, err error) (*Packed, error) {
	if m, ok := p.(*Many); ok && len(m.Of) == 1 {
		p = m.Of[0]
	}
	q, ok := p.(*Packed)
	if err == nil && (!ok || !q.Full) {
		panic(fmt.Sprintf("compress: TwoPhase of a payload of type %T that is not a full Packed", p))
	}
	return q, err
}

func (c *twoPhase) Next(ctx context.Context, s kernels.Stream, got Received, out kernels.Buf[float32]) (Payload, error) {
	if !c.scattered {
		c.scattered = true
		if err := c.decode(ctx, s, c.first[c.rank], got, c.mean); err != nil {
			return nil, err
		}
		kernels.Add(s, c.owner, 1, c.mean)
		p, err := c.one(c.second[c.rank].Start(ctx, s, c.owner))
		if err != nil {
			return nil, err
		}
		c.packed.B, c.packed.Full, c.packed.Entropy = p.B, true, p.Entropy
		return &c.packed, nil
	}
	for r, d := range c.second {
		if err := c.decode(ctx, s, d, Received{Packed: got.Packed[r : r+1]}, c.shard(out, r)); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// decode lets a shard's compressor turn packed bytes into a mean.
func (c *twoPhase) decode(ctx context.Context, s kernels.Stream, d Compressor, got Received, out kernels.Buf[float32]) error {
	p, err := d.Next(ctx, s, got, out)
	if err == nil && p != nil {
		panic("compress: TwoPhase of a method that takes more than one round")
	}
	return err
}

func (c *twoPhase) State() []NamedBuf { return []NamedBuf{Remember("owner", c.owner)} }
