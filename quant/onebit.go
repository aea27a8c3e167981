package quant

import (
	"context"
	"errors"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/kernels"
)

// OneBitConfig sets 1-bit SGD.
type OneBitConfig struct {
	Group    Group             `key:"group" doc:"entries that share two levels: column, row, tensor, or auto, columns or rows, whichever are longer"`
	Exchange compress.Exchange `key:"exchange" doc:"gather every rank's bits, twophase through an owner of each shard, as in the paper, or auto: what costs fewer bytes"`
}

// Group is which entries of a tensor of shape (d0, d1, ...), seen as a matrix of d0 rows, share a pair of levels.
type Group uint8

// Auto takes columns or rows, whichever are longer, because a group costs 64 bits: four bits an entry in columns of 16.
const (
	Auto Group = iota
	Column
	Row
	Tensor
)

func (g Group) String() string { return [...]string{"auto", "column", "row", "tensor"}[g] }

// UnmarshalText reads what String writes.
func (g *Group) UnmarshalText(text []byte) error {
	for x := Auto; x <= Tensor; x++ {
		if x.String() == string(text) {
			*g = x
			return nil
		}
	}
	return errors.New("want column, row, tensor or auto")
}

// of is the grouping of a part.
func (g Group) of(p compress.Part) kernels.Groups {
	n := p.Len()
	if n == 0 {
		return kernels.Groups{}
	}
	rows := 1
	if len(p.Shape) > 0 {
		rows = p.Shape[0]
	}
	cols := n / rows
	byColumn := g == Column || g == Auto && rows >= cols
	if g == Tensor || byColumn && cols == 1 {
		return kernels.Groups{Rows: 1, Cols: n}
	}
	return kernels.Groups{Rows: rows, Cols: cols, ByColumn: byColumn}
}

// NewOneBit makes 1-bit SGD, tensor by tensor. It leaves v less its two levels in v, without which it diverges: wrap it in feedback.
func NewOneBit(c OneBitConfig, t compress.Set) (compress.Compressor, error) {
	return lift(c.Exchange, func(p compress.Part, t compress.Set) (compress.Compressor, error) {
		g := c.Group.of(p)
		msg, err := kernels.NewBuf[uint8](t.Dev, kernels.OneBitBytes(g))
		return &oneBit{groups: g, packed: compress.Packed{B: msg, Full: true}}, err
	})(t)
}

type oneBit struct {
	groups kernels.Groups
	packed compress.Packed
}

func (c *oneBit) Start(_ context.Context, s kernels.Stream, v kernels.Buf[float32]) (compress.Payload, error) {
	kernels.TakeOneBit(s, c.packed.B, v, c.groups)
	return &c.packed, nil
}

func (c *oneBit) Next(_ context.Context, s kernels.Stream, got compress.Received, out kernels.Buf[float32]) (compress.Payload, error) {
	kernels.Zero(s, out)
	for _, msg := range got.Packed {
		kernels.AddOneBit(s, out, 1/float32(len(got.Packed)), msg, c.groups)
	}
	return nil, nil
}

func (c *oneBit) State() []compress.NamedBuf { return nil }
