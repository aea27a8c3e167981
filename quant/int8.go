package quant

import (
	"context"
	"errors"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/kernels"
)

// Int8Config sets int8.
type Int8Config struct {
	Block    int               `key:"block" doc:"entries that share a scale, at least 1"`
	Exchange compress.Exchange `key:"exchange" doc:"gather every rank's bytes, twophase through an owner of each shard, or auto: what costs fewer bytes"`
}

// Validate checks the range.
func (c Int8Config) Validate() error {
	if c.Block < 1 {
		return errors.New("block must be at least 1")
	}
	return nil
}

// NewInt8 makes int8 by block, tensor by tensor. It leaves what rounding loses in v: wrap it in feedback.
func NewInt8(c Int8Config, t compress.Set) (compress.Compressor, error) {
	return lift(c.Exchange, func(p compress.Part, t compress.Set) (compress.Compressor, error) {
		msg, err := kernels.NewBuf[uint8](t.Dev, kernels.BlockInt8Bytes(p.Len(), c.Block))
		return &int8Block{block: c.Block, packed: compress.Packed{B: msg, Full: true}}, err
	})(t)
}

type int8Block struct {
	block  int
	packed compress.Packed
}

func (c *int8Block) Start(_ context.Context, s kernels.Stream, v kernels.Buf[float32]) (compress.Payload, error) {
	kernels.TakeBlockInt8(s, c.packed.B, v, c.block)
	return &c.packed, nil
}

func (c *int8Block) Next(_ context.Context, s kernels.Stream, got compress.Received, out kernels.Buf[float32]) (compress.Payload, error) {
	kernels.Zero(s, out)
	for _, msg := range got.Packed {
		kernels.AddBlockInt8(s, out, 1/float32(len(got.Packed)), msg, c.block)
	}
	return nil, nil
}

func (c *int8Block) State() []compress.NamedBuf { return nil }
