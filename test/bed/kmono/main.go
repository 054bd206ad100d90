// Command kmono holds every Kubernetes program that the test bed runs in one binary, so that the bed pays for one
// link and one download instead of seven. It does what the name that it was called by says, as busybox does; under
// any other name its first argument says it.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/restclient"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs maps a name to the program. Each reads os.Args, in which its own name stands first.
func programs() map[string]func() int {
	return map[string]func() int{
		"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
		"coredns":                 coredns,
		"kube-apiserver":          component(apiserver.NewAPIServerCommand),
		"kube-controller-manager": component(controllermanager.NewControllerManagerCommand),
		"kube-scheduler":          component(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
		"kubelet":                 component(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
		"kubectl":                 runKubectl,
	}
}

func component(build func() *cobra.Command) func() int {
	return func() int { return cli.Run(build()) }
}

// runKubectl ends as kubectl itself does: with the status and the wording of its own error checker.
func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
	return 0
}

func main() {
	all := programs()
	os.Args[0] = filepath.Base(os.Args[0])
	if all[os.Args[0]] == nil && len(os.Args) > 1 {
		os.Args = os.Args[1:]
	}
	run := all[os.Args[0]]
	if run == nil {
		var names []string
		for name := range all {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "kmono: no program %q in here: call it as, or with, one of %s\n",
			os.Args[0], strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(run())
}
