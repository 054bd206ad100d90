package main

import (
	"github.com/coredns/coredns/coremain"

	// The plugins that the bed's Corefile names. All others stay out of the binary.
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func coredns() int {
	coremain.Run()
	return 0
}
