// Package all knows every method, one line each.
package all

import (
	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/dgc"
	"github.com/gradpress/gradpress/powersgd"
	"github.com/gradpress/gradpress/quant"
)

// Methods returns a registry with every method.
func Methods() *compress.Registry {
	r := &compress.Registry{}
	compress.RegisterDense(r)
	dgc.Register(r)
	powersgd.Register(r)
	quant.Register(r)
	return r
}
