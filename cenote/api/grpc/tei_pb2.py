"""Message classes of tei.proto; written by tools/generate_grpc.py."""

from cenote.api.grpc.messages import make_classes

globals().update(
    make_classes(
        "c-qxiOOG2x5N7;ZZ~3v_-k0Mj5GDbwLbOT@0)iC8dhH|@yUx-!pd8R>*3-$3)}Apl<Gij26p0&m#4q5)fggdy58w}Q;4g5X`Y|u>ZW1RskdwQ=s_"
        "L%#s=B(zuoy6VYvQ?qOA35=|EgYrQrEfbQughX`GNjd4$5-wPh7`mqz()BndjTCQ`gRGn~OA@k~PTshh{y)(OYj&K6#>P<XtFR?(m3t#>hNiqk2}"
        "zHCmGBE(f{Z87Piji;WE1s^{d&V&1jLd03PpzJ6ZVXQ<Tf%T3;blGLz*M-x^r2zwAvn<L~3$eAJJ3n;HPm$zihTYFqGKmnEe@FDpSHpb>dW9T}=s"
        "pl~#Fg(eLUoWD0g|4A^Cz2|{e6k5OZf84_X<&?)b1yioFA9Sy;$05!3N+L_FoWTt5x7Up@#_$2wm3WxD7gwG){NXJaot;4S_`#9A2=gdVNJL{vbp"
        "Qh(zhS8dRgqi*V_>?VcACsnyd;h?8jz+2{j(L9wx}ISA@k%QuehJwF;2qNog%X#YkqkRR%DkoVC_q#W)^-{;vkbJr<aj8JOe(REF*t*<r@;(8O&u"
        "v29s_I~*hLKs8iSgk^+QXsY<qp%S=(iP^Tt%s?$(bU9iQ-~h3nj}?)QHdM_CRg#n`3tSZ)pR!0bFIN?y(zyi7wsV(ZMGRxTg3w!v1X5T3H3Q|&_<"
        "&g|Z)6<`qHKJ1wA73=pcr^lXJ`gY#9O4%oV*Q-j_Zxh5zj3TvxsLehIlFTFjA?`<Fss#4f#k!T5X;UPr)G4X@@G9^y4782qo+p<4IsR=9sAisZo$"
        "%4>7*$1po`<ba-!&6jbokCNNYIWfJ+?szTXFtlYw0WW@UVH&9V@sb2IZ0ONpVJNGze*-hLaM#yDsDXP2#Z>44}I`Rsqk%s=K21KmipJ1u6mr2TLj"
        "AvgB<2lu0(~Qs3r(c7T4CO0xG-YHJ^0s5Khw5O-2}kd9v4|l<<wXBpgOwB)it*22*%yd0Lwu>Z5=NESlh&km=S6e!hXzZ+czZN@{S$Hps-i(fbUd"
        "qq_3t#O#qp~oY(q_Sr{g(Tj{-?;LzjZoeBLblra^VzW0pM(UM30W06g=7;SXJp$(CHCi-`0E@T%LC{yUy$<@LU4dnb9G{eOD?F@SQM*BYKsv9Vwp"
        "PpFu1RKBOgdyC46K82+yQL0)#;H4Ta78VK#eTw&?Nwql(<ZlfslzFCe6tax&;lO*O%0o^#8nA}}zqL8_a*|>``&8z0v&`eW&tt*V!|NND5?4`?f`"
        "kT$oSK@#3#R5DY>YC}e&8{4{PcJU<b+=`M`HY1MLU2T#ZXVVIyREgVfPa=e)UHcn@v<~YXS1YZ~XwOVX>$h)gjO4VRe>6NBQPdisr1yAF(1k&JbU"
        "q&+1s0ftZ$M_!Bm?`HL}rRu*XuC4DJSFUy(6pMAc@|C5GSu|1xQ<O7vdA%kBzl1v<(SSR?QrF>Fl5>D|;DeniS7l;C>;O=tDna7m)fjbeUQNcHvm"
        "~oGaP%wm+NCQXp>rf3DQfYV(3M%~BD?Rp|Di!?;sI*y<;2LCYOPW?FACfIt@sI4u$=oh;QHossB2>dAl}8~lT1?EPJFpmiupvvUd$-%2U1M-(zhi"
        "XvTAg;g+q+qN16f*2NOpF&`~B{XZim)5ODhQx?a=Ms=P1Zr8o<g4X9I8P#(;j=+u0s;Z}*ILmv(l<h<0z@8sJvv;LM5g-Oi0cO>16*9RGyI?<@Hm"
        "(VF<sZmgz38GrMaEab(tjcr^FBE{sVLt||QRs4MlCHagK&1x>&P3?+CZiM#Y8Alo^&D1-&arQ)+@?#&C6R`5;MOPD^U58@$Fd`c%<@l-Cs2>+7hi"
        "+o=D@=Ja|03Lv=Fb^eP?sqABp$BMT(IF{8^>_vPzy?l$4bo2@fXbLYqX)FAQjWRUI=D)VL7qsY_8_;NAUARgM#e#<fCX5Rb1-P&{&^^Ra_k?C+}Q"
        "xHm#SsiBDT(Q)~W^f#N`Z)-!S~F^&&F^2Uf)nrV|e>KTuw%Axrd5G*4Zve(7NsdgG0&$PsCC`)8^@8>e-dmj|UUw-fZ2i@&31p"
    )
)
