package all_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/compress/all"
	"github.com/gradpress/gradpress/kernels"
)

// FuzzParse: whatever a person writes is refused by a ParseError, or a method that can compress.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"dense", "topk:ratio=0.001,values=int8,across=true", "dgc:ratio=0.25,warmup=3,clip=1,small=0.5,exchange=auto,masking=false",
		"powersgd:rank=3,begin=1", "onebit:group=row,exchange=twophase", "threshold:tau=0.1,exchange=twophase", "terngrad:clip=0,share_scale=true,exchange=auto", "int8:block=7", "fp16", "bf16",
		"dgc:ratio=NaN", "powersgd:rank=999999999999", ":", "topk:ratio"} {
		f.Add(text)
	}
	registry := all.Methods()
	f.Fuzz(func(t *testing.T, text string) {
		m, err := registry.Parse(text)
		if err != nil {
			var refused *compress.ParseError
			require.True(t, errors.As(err, &refused), "%T", err)
			return
		}
		again, err := registry.Parse(m.Text)
		require.NoError(t, err)
		require.Equal(t, m.Config, again.Config)
		set := compress.Set{Parts: []compress.Part{compress.NewPart("w", 11, 30), compress.NewPart("b", 7)}, Rank: 1, Size: 3, Dev: kernels.CPU()}
		c, err := m.New(set)
		require.NoError(t, err)
		stream, err := kernels.CPU().NewStream()
		require.NoError(t, err)
		v, err := kernels.NewBuf[float32](kernels.CPU(), 337)
		require.NoError(t, err)
		x, _ := kernels.Host(v)
		for i := range x {
			x[i] = float32(i%17-8) / 3
		}
		p, err := c.Start(t.Context(), stream, v)
		require.NoError(t, err)
		require.NotNil(t, p)
		require.NoError(t, stream.Sync(t.Context()))
	})
}
