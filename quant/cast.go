package quant

import (
	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/kernels"
)

// CastConfig has no settings.
type CastConfig struct{}

// Transparent is true: each hop rounds and sums in float32, and what is not finite stays so.
func (CastConfig) Transparent() bool { return true }

func newCast(wire kernels.DType) func(CastConfig, compress.Set) (compress.Compressor, error) {
	return func(_ CastConfig, t compress.Set) (compress.Compressor, error) {
		return compress.NewDense(t, compress.Momentum{}, wire)
	}
}
